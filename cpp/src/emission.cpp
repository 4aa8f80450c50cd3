#include "trtspec/emission.hpp"

#include <algorithm>
#include <cstddef>

namespace trtspec {

namespace {

// What the last row that was walked emits. Only a forced walk ends above a node that carries what
// was sampled: a miss then has the lowest id that is on no child and does not end the text.
std::int64_t bonus_token(const VerifiedRows& rows, std::int32_t last,
                         std::span<const std::int64_t> end_tokens) {
  const auto is_child = [&](std::int64_t token) {
    for (std::size_t row = 1; row < rows.tokens.size(); ++row) {
      if (rows.parents[row] == last && rows.tokens[row] == token) return true;
    }
    return false;
  };
  std::int64_t token = rows.sampled[std::size_t(last)];
  if (!is_child(token)) return token;
  for (token = 0; is_child(token) || std::ranges::count(end_tokens, token) > 0;) ++token;
  return token;
}

}  // namespace

TextEnd emit(const VerifiedRows& rows, std::span<const std::int32_t> walked,
             std::span<const std::int64_t> end_tokens, std::int64_t remaining,
             std::vector<std::int64_t>& emitted) {
  const std::int64_t bonus = walked.empty() ? -1 : bonus_token(rows, walked.back(), end_tokens);
  // What came before a row without a usable number stands; the next step fails.
  const std::size_t count = bonus < 0 && !walked.empty() ? walked.size() - 1 : walked.size();
  if (count == 0) return {0, FinishReason::error};
  const std::size_t first = emitted.size();
  for (const std::int32_t row : walked.subspan(1)) {
    emitted.push_back(rows.tokens[std::size_t(row)]);
  }
  if (count == walked.size()) emitted.push_back(bonus);
  const TextEnd end = text_end(std::span(emitted).subspan(first), end_tokens, remaining);
  emitted.resize(first + end.count);
  return end;
}

}  // namespace trtspec
