// The passes over a row of logits that are compiled for each instruction set.
//
// A row is cut into blocks of 64 tokens; every pass works on a range of blocks, so one row can be
// spread over threads. No pass keeps a sum that depends on how the blocks were divided.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "sampling_math.hpp"
#include "trtspec/philox.hpp"

namespace trtspec {

inline constexpr std::int64_t kBlock = 64;

// Probability masses are counted in integers, in units of 2^-40 of the most likely token's, so that
// sums are exact in any order. Adding 2^52 leaves the rounded integer in the low bits.
template <class D, class U>
[[gnu::always_inline]] constexpr U mass_of(D weight) {
  return __builtin_bit_cast(U, weight * 0x1p40 + math::kTwo52) & math::kMantissaMask;
}

// A rough weight is within this share of what it stands for, or was too small for a float: then it
// is below kLeastRough, even with the largest noise.
inline constexpr double kRoughError = 5e-5;
inline constexpr float kLeastRough = 1e-27f;

// Histogram buckets are 1/32 of an octave of weight; weights below 2^-42 (of no mass) count as it.
inline constexpr double kSmallest = 0x1p-42;
inline constexpr std::uint64_t kSmallestBits = 0x3d50000000000000ull;
inline constexpr int kBucketShift = 47;
inline constexpr std::int64_t kBuckets = 42 * 32 + 1;

template <class D, class U>
[[gnu::always_inline]] constexpr U bucket_of(D weight) {
  return (__builtin_bit_cast(U, weight) - kSmallestBits) >> kBucketShift;
}

// Survivors of the filters: logits above `logit`, those equal to it up to `column`, and of these
// the tokens whose probability is at least min_p of the largest.
struct Cut {
  float logit;
  std::int64_t column;
};

struct SamplingRow {
  const float* logits;
  std::int64_t vocab;
  double temperature;  // > 0; scaled logits are float64(logit) / temperature
  double max_scaled;
  double min_p;
  Cut cut;
  NoiseStream noise;
  const std::int64_t* token_map;  // null = the column is the token id
};

struct TokenScore {
  double score;
  std::int64_t column;  // -1 = none
};

[[gnu::always_inline]] constexpr double scaled_logit(const SamplingRow& row, float logit) {
  return static_cast<double>(logit) / row.temperature;
}

[[gnu::always_inline]] constexpr double token_weight(const SamplingRow& row, float logit) {
  return math::exp_of(scaled_logit(row, logit) - row.max_scaled);
}

// The one definition of a token's score, used wherever tokens are compared.
[[gnu::always_inline]] constexpr double token_score(const SamplingRow& row, std::int64_t column) {
  const std::int64_t id = row.token_map != nullptr ? row.token_map[column] : column;
  return scaled_logit(row, row.logits[column]) + math::gumbel_of(noise_word(row.noise, id));
}

[[gnu::always_inline]] constexpr bool survives(const SamplingRow& row, std::int64_t column) {
  const float logit = row.logits[column];
  const bool in_cut = logit > row.cut.logit || (logit == row.cut.logit && column <= row.cut.column);
  if (!in_cut) return false;
  return row.min_p <= 0.0 || token_weight(row, logit) >= row.min_p;
}

// maxima[b] of the blocks [first, last); false if one of their logits is NaN.
TRTSPEC_DECLARE_KERNEL(bool, block_maxima,
                       (const float* logits, std::int64_t vocab, std::int64_t first,
                        std::int64_t last, float* maxima))

// weights[b] = exp(scaled maxima[b] - max_scaled) for b in [0, count).
TRTSPEC_DECLARE_KERNEL(void, block_weights,
                       (const SamplingRow& row, const float* maxima, std::int64_t count,
                        double* weights))

// The survivor with the highest scaled logit + noise, the lowest column among equals. Blocks and
// tokens whose logit is too low for any noise, or for the noise they have, to win are passed over.
TRTSPEC_DECLARE_KERNEL(TokenScore, noise_argmax,
                       (const SamplingRow& row, const float* maxima, const double* weights,
                        std::int64_t first, std::int64_t last))

// Adds the mass of every token of the blocks to the bucket of its weight.
TRTSPEC_DECLARE_KERNEL(void, mass_histogram,
                       (const SamplingRow& row, const double* weights, std::int64_t first,
                        std::int64_t last, std::int64_t* histogram))

// Weights exp(scaled logit - max_scaled + noise) of the survivors, 0 of other tokens, in floats; of
// all tokens and without noise if `greedy`. `highest` is the row's highest logit. sums[b] is a block's
// sum, peaks[b] its maximum (0 if `greedy`); `weights`, if not null, gets those of all tokens of the
// blocks [first, last).
TRTSPEC_DECLARE_KERNEL(void, rough_weights,
                       (const SamplingRow& row, float highest, const float* maxima, bool greedy,
                        std::int64_t first, std::int64_t last, float* sums, float* peaks,
                        float* weights))

}  // namespace trtspec
