#include <trtspec/text_end.hpp>

#include <algorithm>

namespace trtspec {

TextEnd text_end(std::span<const std::int64_t> tokens, std::span<const std::int64_t> end_tokens,
                 std::int64_t remaining) {
  const auto allowed = tokens.first(
      std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(remaining, 0))));
  const auto end =
      std::find_first_of(allowed.begin(), allowed.end(), end_tokens.begin(), end_tokens.end());
  if (end != allowed.end()) {
    return {static_cast<std::size_t>(end - allowed.begin()) + 1, FinishReason::stop};
  }
  const bool is_last = static_cast<std::int64_t>(allowed.size()) >= remaining;
  return {allowed.size(), is_last ? FinishReason::length : FinishReason::none};
}

}  // namespace trtspec
