// The floats that packed weights stand for, for products of many rows by other libraries.
#pragma once

#include "few_row_weights.cuh"

namespace trtspec::cuda {

inline constexpr int kDequantiseWarps = 4;

// A warp has a stage of a pair of tiles. p.out: [N, K] of T.
template <class T, class Weights>
__global__ void __launch_bounds__(kDequantiseWarps* kLanes)
    dequantise_weights(const __grid_constant__ FewRowParams p) {
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kDequantiseWarps + warp;
  const int stage = static_cast<int>(blockIdx.y);
  unsigned char* const memory = dynamic_shared() + warp * Weights::kWarpBytes;
  Weights::copy(p, pair, stage, lane, memory);
  commit_copies();
  wait_copies();
  __syncwarp();  // lanes copied scales for each other
  const typename Weights::Held held(p, memory, lane);
#pragma unroll
  for (int step = 0; step < kStageSteps; ++step) {
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
      std::uint32_t a[4];
      held.load(tile, step, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t output =
            (pair * kWarpTiles + tile) * kTileOutputs + lane / 4 + i % 2 * 8;
        const std::int64_t input =
            std::int64_t{stage} * kStageInputs + step * 16 + lane % 4 * 2 + i / 2 * 8;
        const float2 by = held.factors(tile, step, i % 2);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (output >= p.out_features || input + half >= p.in_features) continue;
          const float value = to_float(T{static_cast<std::uint16_t>(a[i] >> 16 * half)});
          from_float(fmaf(value, by.x, by.y),
                     static_cast<T*>(p.out)[output * p.in_features + input + half]);
        }
      }
    }
  }
}

}  // namespace trtspec::cuda
