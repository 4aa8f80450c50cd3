// The softmax of a row's scores by pieces of its keys, and how pieces are joined. Only for kernel
// sources.
#pragma once
#include "attention_kernel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Scores of a piece become weights e^(score - maximum). There is room for whole vectors; whether the
// scores of a next piece are behind, which stay as they are.
inline AttentionPart softmax(float* scores, std::int64_t keys, bool has_next) {
  const float lowest = -__builtin_inff();
  const std::int64_t whole = (keys + 15) / 16 * 16;
  float next[16];
  const auto behind = std::size_t(whole - keys) * sizeof(float);
  if (has_next) __builtin_memcpy(next, scores + keys, behind);
  for (std::int64_t i = keys; i < whole; ++i) scores[i] = lowest;
  VF greatest = splat(lowest);
  for (std::int64_t i = 0; i < keys; i += kLanes) greatest = max(greatest, load(scores + i));
  float maximum = lowest;
  for (int i = 0; i < kLanes; ++i) maximum = greatest[i] > maximum ? greatest[i] : maximum;
  VF total[16 / kLanes] = {};
  for (std::int64_t i = 0; i < keys; i += 16) {
    for (int j = 0; j < 16 / kLanes; ++j) {
      const VF weight = exp(load(scores + i + j * kLanes) - splat(maximum));
      store(scores + i + j * kLanes, weight);
      total[j] += weight;
    }
  }
  if (has_next) __builtin_memcpy(scores + keys, next, behind);
  float lanes[16];
  for (int j = 0; j < 16 / kLanes; ++j) store(lanes + j * kLanes, total[j]);
  return {maximum, sum16(lanes)};
}

// Scores s become cap * tanh(s / cap). There is room for whole vectors.
inline void cap_scores(float* scores, std::int64_t keys, float cap) {
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    store(scores + i, tanh(load(scores + i) / splat(cap)) * cap);
  }
}

// What is made of no keys: zeros.
inline AttentionPart no_keys(float* result, std::int64_t size) {
  for (std::int64_t d = 0; d < size; d += kLanes) store(result + d, VF{});
  return {-__builtin_inff(), 1};
}

// A piece joins those before it in `joined`, whose total is 0 where there are none: weighted sums of
// values [size], all to the greater maximum.
inline void join(const AttentionPart& piece, const float* sums, std::int64_t size,
                 AttentionPart& joined, float* result) {
  if (joined.total == 0) {
    joined = piece;
    __builtin_memcpy(result, sums, std::size_t(size) * sizeof(float));
    return;
  }
  const float maximum = piece.maximum > joined.maximum ? piece.maximum : joined.maximum;
  const VF before = exp(splat(joined.maximum - maximum)), now = exp(splat(piece.maximum - maximum));
  const VF total = fma(splat(joined.total), before, splat(piece.total) * now);
  joined = {maximum, total[0]};
  for (std::int64_t d = 0; d < size; d += kLanes) {
    store(result + d, fma(load(result + d), before, load(sums + d) * now));
  }
}

// The score of a sink joins all pieces of a (row, head): it weighs, and has no values.
inline void add_sink(float sink, std::int64_t size, AttentionPart& joined, float* result) {
  const float maximum = sink > joined.maximum ? sink : joined.maximum;
  const VF before = exp(splat(joined.maximum - maximum)), now = exp(splat(sink - maximum));
  joined = {maximum, fma(splat(joined.total), before, now)[0]};
  for (std::int64_t d = 0; d < size; d += kLanes) store(result + d, load(result + d) * before);
}

// A (row, head)'s result, rounded.
template <class Value>
inline void store_result(const float* sums, float total, std::int64_t size, Value* out) {
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) store(out + d, load(sums + d) / splat(total));
  for (; d < size; ++d) from_float(sums[d] / total, out + d);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
