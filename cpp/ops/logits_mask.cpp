#include <trtspec/logits_mask.hpp>

#include <algorithm>
#include <limits>

namespace trtspec {

void mask_logits(float* logits, std::int64_t rows, std::int64_t vocab, const LogitsMask& mask) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < mask.num_biases; ++i) {
    const std::int64_t id = mask.bias_ids[i];
    if (id < 0 || id >= vocab) continue;
    float& logit = logits[mask.bias_rows[i] * vocab + id];
    // Not a sum: NaN and +inf would not become -inf.
    logit = mask.bias_values[i] == kNever ? kNever : logit + mask.bias_values[i];
  }
  if (mask.allowed == nullptr) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const own = logits + row * vocab;
    const std::int32_t* const words = mask.allowed + row * mask.words;
    const std::int64_t with_bit = std::min(vocab, mask.words * 32);
    for (std::int64_t first = 0; first < with_bit; first += 32) {
      const auto word = static_cast<std::uint32_t>(words[first / 32]);
      if (word == ~std::uint32_t{0}) continue;
      const std::int64_t count = std::min<std::int64_t>(32, with_bit - first);
      for (std::int64_t bit = 0; bit < count; ++bit) {
        if ((word >> bit & 1) == 0) own[first + bit] = kNever;
      }
    }
    std::fill(own + with_bit, own + vocab, kNever);
  }
}

}  // namespace trtspec
