// What the sampling kernels share: how a row is divided, its plan, and reductions over a block.
//
// A row of logits is cut into chunks, a block each: their maxima first, then a plan of the row with
// the cut of its filters, then the chunks' best tokens, then the row's. Decisions are made in the
// arithmetic of the CPU kernels (cpp/ops/sampling_kernel.hpp), without fused multiply-adds; floats
// serve to pass over tokens that cannot matter.
#pragma once

#include <sampling_kernel.hpp>
#include <trtspec/sampling.hpp>

#include "device.cuh"

namespace trtspec::cuda {

inline constexpr int kChunk = 2048;  // tokens
inline constexpr int kChunkThreads = 256;
inline constexpr int kChunkWarps = kChunkThreads / kLanes;
inline constexpr int kQuads = kChunk / kChunkThreads / 4;  // of a thread: 4 neighbouring tokens
inline constexpr float kNoiseSpan = 26.2f;  // no token so far below the highest ever wins

enum class PlanKind { invalid, greedy, random };

// Everything that follows from a row's logits and values before a token is looked at.
struct RowPlan {
  SamplingRow row;
  PlanKind kind;
  float highest;      // logit
  float temperature;  // 1 if greedy
  float log_min_p;
};

// (logit - highest) / temperature, to a few units of float's last place.
__device__ __forceinline__ float below_highest(const RowPlan& plan, float logit) {
  return (logit - plan.highest) / plan.temperature;
}

__device__ __forceinline__ bool within(const Cut& cut, float logit, std::int64_t column) {
  return logit > cut.logit || (logit == cut.logit && column <= cut.column);
}

__device__ __forceinline__ bool better(const TokenScore& a, const TokenScore& b) {
  if (a.column < 0 || b.column < 0) return a.column >= 0;
  return a.score > b.score || (a.score == b.score && a.column < b.column);
}

__device__ inline TokenScore best_of_lanes(TokenScore mine) {
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    const TokenScore other{__shfl_xor_sync(kWarp, mine.score, lanes),
                           __shfl_xor_sync(kWarp, mine.column, lanes)};
    if (better(other, mine)) mine = other;
  }
  return mine;
}

// The best of a chunk's threads, on all of them; `shared` holds one a warp.
__device__ inline TokenScore best_of_chunk(TokenScore mine, TokenScore* shared) {
  mine = best_of_lanes(mine);
  __syncthreads();  // `shared` may still be read from the call before
  if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = mine;
  __syncthreads();
  mine = shared[0];
  for (int warp = 1; warp < kChunkWarps; ++warp) {
    if (better(shared[warp], mine)) mine = shared[warp];
  }
  return mine;
}

// The first column of a thread's quad.
__device__ __forceinline__ std::int64_t quad_column(int chunk, int quad) {
  return std::int64_t{chunk} * kChunk + (quad * kChunkThreads + int(threadIdx.x)) * 4;
}

// Four neighbouring logits; -inf beyond the vocabulary. `aligned`: rows begin at multiples of 16
// bytes.
__device__ inline void load_quad(const float* row, std::int64_t column, std::int64_t vocab,
                                 bool aligned, float (&out)[4]) {
  if (aligned && column + 4 <= vocab) {
    const float4 quad = *reinterpret_cast<const float4*>(row + column);
    out[0] = quad.x;
    out[1] = quad.y;
    out[2] = quad.z;
    out[3] = quad.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = column + i < vocab ? row[column + i] : -infinity();
}

// The random words of four neighbouring columns.
__device__ inline void quad_words(const SamplingRow& row, std::int64_t column,
                                  std::uint32_t (&words)[4]) {
  if (row.token_map == nullptr) {
    const PhiloxBlock block = philox4x32_10({{static_cast<std::uint32_t>(column >> 2),
                                              row.noise.output_index, row.noise.sample_index, 0u}},
                                            row.noise.key);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = block.word[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = column + i < row.vocab ? noise_word(row.noise, row.token_map[column + i]) : 0;
  }
}

}  // namespace trtspec::cuda
