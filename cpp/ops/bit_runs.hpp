// Ranges and runs of the bits of a word, and words of a longer mask. Only for kernel sources.
#pragma once
#include <cstdint>

#include "isa.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Bits [from, to) of a word, both cut to 0..64.
inline std::uint64_t bit_range(std::int64_t from, std::int64_t to) {
  from = from < 0 ? 0 : from;
  to = to > 64 ? 64 : to;
  if (from >= to) return 0;
  const std::uint64_t below_to = to == 64 ? ~0ull : (1ull << to) - 1;
  return below_to & ~((1ull << from) - 1);
}

inline int run_length(std::uint64_t bits) { return bits == ~0ull ? 64 : __builtin_ctzll(~bits); }

// 64 bits of a mask from bit `first` on (which may be negative); bits outside of it are 0.
inline std::uint64_t mask_bits(const std::int64_t* mask, std::int64_t words, std::int64_t first) {
  if (first <= -64 || first >= 64 * words) return 0;
  if (first < 0) return std::uint64_t(mask[0]) << -first;
  const std::int64_t word = first / 64;
  const int shift = int(first % 64);
  std::uint64_t bits = std::uint64_t(mask[word]) >> shift;
  if (shift != 0 && word + 1 < words) bits |= std::uint64_t(mask[word + 1]) << (64 - shift);
  return bits;
}

}  // namespace trtspec::TRTSPEC_ISA_NS
