// StepResult: what became of the requests of a step, a column of values by request.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <trtspec/text_end.hpp>
#include <utility>
#include <vector>

namespace trtspec {

// Log probabilities of the raw model at one output position: of the emitted token, and the best
// tokens with theirs, falling.
struct TokenLogprobs {
  std::int64_t token;
  double logprob;
  std::vector<std::pair<std::int64_t, double>> top;
};

// A path through a tree is accepted up to where its text ends, or before a row for which the model
// gave no usable number; if that is the root's, the request fails: nothing is emitted, and it ends
// with `error`.
struct StepResult {
  // Of request i these are emitted: tokens[start[i]] .. tokens[start[i + 1] - 1], the last one being
  // the bonus token. None by a prompt whose end was not fed.
  std::vector<std::int64_t> start = {0};
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> rows;  // that emit these: 0 the root's, then those of accepted nodes
  std::vector<FinishReason> ends;  // `none`: the text goes on
  std::vector<std::vector<TokenLogprobs>> logprobs = {};  // of the tokens, where they are asked for
  // The target's states of the rows that stay, one request behind the other: [sum of num_kept(),
  // n * H], where a drafter reads them.
  at::Tensor hidden = {};

  std::size_t size() const { return ends.size(); }
  std::int64_t num_emitted(std::size_t i) const { return start[i + 1] - start[i]; }
  std::span<const std::int64_t> emitted(std::size_t i) const { return part(tokens, i); }
  std::span<const std::int64_t> accepted_rows(std::size_t i) const { return part(rows, i); }
  bool failed(std::size_t i) const { return ends[i] == FinishReason::error; }
  // Rows of request i that stay in the target's cache: the `fed` ones, then accepted nodes. The
  // last emitted token has no row yet.
  std::int64_t num_kept(std::size_t i, std::int64_t fed) const {
    if (failed(i)) return 0;
    return fed + (num_emitted(i) > 0 ? num_emitted(i) - 1 : 0);
  }

  // Appends a request that emits nothing.
  void add(FinishReason end = FinishReason::none) {
    start.push_back(start.back());
    ends.push_back(end);
    logprobs.emplace_back();
  }

 private:
  std::span<const std::int64_t> part(const std::vector<std::int64_t>& all, std::size_t i) const {
    return std::span(all).subspan(std::size_t(start[i]), std::size_t(num_emitted(i)));
  }
};

}  // namespace trtspec
