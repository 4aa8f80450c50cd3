// Inputs for tests of products: values between -1 and 1 that look random, and bfloat16.
#pragma once
#include <trtspec/linear.hpp>

#include <cstddef>
#include <cstdint>

inline float value(std::size_t i) { return float(i * 2654435761u % 1000) / 500.0f - 1.0f; }

inline trtspec::bf16 rounded(float x) {
  return {std::uint16_t(__builtin_bit_cast(std::uint32_t, x) >> 16)};
}

inline float wide(trtspec::bf16 x) {
  return __builtin_bit_cast(float, std::uint32_t(x.bits) << 16);
}
