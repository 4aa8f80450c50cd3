// LogitsProcessor: what the options of a request do to its logits before they are sampled, as
// trtspec/executor does it: logit biases, then penalties, then bans (logit_bias.py, penalties.py,
// bans.py).
#pragma once

#include <cstdint>
#include <span>
#include <trtspec/tree_view.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trtspec {

// Token ids beyond the vocabulary are ignored: such a token cannot come.
struct LogitsOptions {
  double repetition_penalty = 1.0;  // of tokens in prompt or output; 1: off
  double presence_penalty = 0.0;    // once, of tokens in the output; 0: off
  double frequency_penalty = 0.0;   // per occurrence in the output; 0: off
  std::vector<std::pair<std::int64_t, double>> logit_bias = {};  // token, what is added to it
  std::vector<std::vector<std::int64_t>> bad_words = {};  // that must not come; none is empty
  std::int64_t min_tokens = 0;  // output tokens before one that ends the text may come

  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
  // Whether anything is done to the logits.
  bool changes() const {
    return has_penalties() || !logit_bias.empty() || !bad_words.empty() || min_tokens > 0;
  }
};

// The state is a function of the request's text. Each row of a verify step is treated by its own
// text: prompt, output so far, and the draft tokens on its path. So a row gets the bits that the
// same text would get without drafts. Arithmetic is that of float32, operation by operation.
class LogitsProcessor {
 public:
  // end_tokens: those that end the text. The text is empty yet.
  LogitsProcessor(LogitsOptions options, std::vector<std::int64_t> end_tokens,
                  std::int64_t num_prompt_tokens);

  // Takes in what `text`, prompt and output so far, has beyond what is known of it.
  void extend(std::span<const std::int64_t> text);
  // Changes logits [1 + tree.size(), vocab], contiguous, in place: those of the row of the newest
  // token, then those of the nodes.
  void apply(TreeView tree, float* logits, std::int64_t vocab) const;

 private:
  using Path = std::span<const std::int64_t>;  // tokens, from a child of the root down

  float penalised(float logit, std::int64_t count) const;
  void penalise(Path path, float* row, std::int64_t vocab) const;
  void ban_words(Path path, float* row, std::int64_t vocab) const;

  LogitsOptions options_;
  std::vector<std::int64_t> end_tokens_;
  std::int64_t num_prompt_tokens_;
  std::int64_t length_ = 0;
  std::size_t tail_length_ = 0;     // what the longest bad word asks for
  std::vector<std::int64_t> tail_;  // the newest tokens, so many at most
  // Of each token that a penalty concerns: how often it is in the output.
  std::unordered_map<std::int64_t, std::int64_t> counts_;
};

}  // namespace trtspec
