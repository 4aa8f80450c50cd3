#include "trtspec/logits_processor.hpp"

#include <algorithm>
#include <limits>

namespace trtspec {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool is_in(std::int64_t token, std::int64_t vocab) { return token >= 0 && token < vocab; }

}  // namespace

LogitsProcessor::LogitsProcessor(LogitsOptions options, std::vector<std::int64_t> end_tokens,
                                 std::int64_t num_prompt_tokens)
    : options_(std::move(options)),
      end_tokens_(std::move(end_tokens)),
      num_prompt_tokens_(num_prompt_tokens) {
  for (const auto& word : options_.bad_words) {
    tail_length_ = std::max(tail_length_, word.size() - 1);
  }
}

void LogitsProcessor::extend(std::span<const std::int64_t> text) {
  const bool counts_prompt = options_.repetition_penalty != 1.0;
  for (const std::int64_t token : text.subspan(static_cast<std::size_t>(length_))) {
    const bool is_output = length_++ >= num_prompt_tokens_;
    if (options_.has_penalties() && (is_output || counts_prompt)) counts_[token] += is_output;
    if (tail_length_ > 0) tail_.push_back(token);
  }
  if (tail_.size() > tail_length_) {
    tail_.erase(tail_.begin(), tail_.end() - static_cast<std::ptrdiff_t>(tail_length_));
  }
}

void LogitsProcessor::apply(TreeView tree, float* logits, std::int64_t vocab) const {
  std::vector<std::int64_t> path;
  const std::int64_t num_outputs = length_ - num_prompt_tokens_;
  for (std::int64_t row = 0; row <= tree.size(); ++row) {
    path.clear();
    if (row > 0) {
      for (const std::int32_t node : tree.path(row - 1)) {
        path.push_back(tree.tokens[static_cast<std::size_t>(node)]);
      }
    }
    float* own = logits + row * vocab;
    for (const auto& [token, bias] : options_.logit_bias) {
      if (is_in(token, vocab)) own[token] += static_cast<float>(bias);
    }
    if (options_.has_penalties()) penalise(path, own, vocab);
    ban_words(path, own, vocab);
    if (num_outputs + static_cast<std::int64_t>(path.size()) >= options_.min_tokens) continue;
    for (const std::int64_t token : end_tokens_) {
      if (is_in(token, vocab)) own[token] = kNever;
    }
  }
}

float LogitsProcessor::penalised(float logit, std::int64_t count) const {
  if (options_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    logit = logit > 0.0f ? logit / penalty : logit * penalty;
  }
  if (options_.frequency_penalty != 0.0) {
    logit -= static_cast<float>(count) * static_cast<float>(options_.frequency_penalty);
  }
  if (options_.presence_penalty != 0.0 && count > 0) {
    logit -= static_cast<float>(options_.presence_penalty);
  }
  return logit;
}

void LogitsProcessor::penalise(Path path, float* row, std::int64_t vocab) const {
  // The tokens on the path are redone from the untouched logit, with the path's count.
  struct Own {
    std::int64_t token;
    std::int64_t count;
    float logit;
  };
  std::vector<Own> on_path;
  for (const std::int64_t token : path) {
    if (!is_in(token, vocab)) continue;
    const auto found = std::find_if(on_path.begin(), on_path.end(),
                                    [token](const Own& own) { return own.token == token; });
    if (found != on_path.end()) {
      ++found->count;
      continue;
    }
    const auto known = counts_.find(token);
    const std::int64_t before = known == counts_.end() ? 0 : known->second;
    on_path.push_back({token, before + 1, row[token]});
  }
  for (const auto& [token, count] : counts_) {
    if (is_in(token, vocab)) row[token] = penalised(row[token], count);
  }
  for (const Own& own : on_path) row[own.token] = penalised(own.logit, own.count);
}

void LogitsProcessor::ban_words(Path path, float* row, std::int64_t vocab) const {
  // Token number `back` before the one that the row emits, if there is one that is known.
  const auto before = [&](std::size_t back) -> std::int64_t {
    if (back <= path.size()) return path[path.size() - back];
    back -= path.size();
    return back <= tail_.size() ? tail_[tail_.size() - back] : -1;
  };
  for (const auto& word : options_.bad_words) {
    std::size_t back = 1;
    while (back < word.size() && before(back) == word[word.size() - 1 - back]) ++back;
    if (back == word.size() && is_in(word.back(), vocab)) row[word.back()] = kNever;
  }
}

}  // namespace trtspec
