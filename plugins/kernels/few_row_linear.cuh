// Products of at most 64 rows with a weight matrix, at the speed of reading it (mma.m16n8k16).
//
// The matrix is the operand of 16 rows, so that 8 rows of x fill the other. A warp has 32 outputs
// and copies their weights, stage after stage of 64 inputs, some stages ahead; the four warps of a
// block share the rows of x. Several blocks may share the inputs of an output: how many follows
// from (N, K) alone, and their sums are added in their order. So a row's bits depend on its own
// rows of x and of the residual and on W, but not on the other rows.
#pragma once

#include <type_traits>

#include "few_row_weights.cuh"

namespace trtspec::cuda {

inline constexpr int kFewRowWarps = 4;
inline constexpr int kFewRowThreads = kFewRowWarps * kLanes;
inline constexpr int kPairOutputs = kWarpTiles * kTileOutputs;

struct FewRowArgs {
  FewRowParams p;
  float4* sums;  // [splits, pairs of tiles, tiles of rows, 2, 32], as lanes have them
  std::int64_t pairs;
  int row_tiles;  // of 8 rows
  int splits;
  int stages;  // of all inputs
};

// Rounds a sum once, adds the residual and rounds again.
template <class O>
__device__ void store_output(const FewRowParams& p, std::int64_t at, float value) {
  O rounded;
  from_float(value, rounded);
  if (p.residual != nullptr) {
    from_float(to_float(static_cast<const O*>(p.residual)[at]) + to_float(rounded), rounded);
  }
  static_cast<O*>(p.out)[at] = rounded;
}

__device__ inline void store_output(const FewRowParams& p, std::int64_t at, float value) {
  if (p.out_dtype == DType::f32) return store_output<float>(p, at, value);
  if (p.out_dtype == DType::bf16) return store_output<bf16>(p, at, value);
  store_output<f16>(p, at, value);
}

__device__ inline float bias_of(const FewRowParams& p, std::int64_t output) {
  if (p.bias == nullptr) return 0.0f;
  const std::uint16_t bits = static_cast<const std::uint16_t*>(p.bias)[output];
  return p.dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

// What becomes of a lane's sums of a pair of tiles and a tile of rows.
__device__ inline void store_sums(const FewRowParams& p, std::int64_t pair, int row_tile, int lane,
                                  const float (&sums)[kWarpTiles][4]) {
  static_assert(kWarpTiles == 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row_tile * 8 + lane % 4 * 2 + i % 2;
    const int place = lane / 4 + i / 2 * 8;
    const std::int64_t output = pair * kPairOutputs + place;
    if (row >= p.rows) continue;
    if (p.swiglu) {
      if (output >= p.out_features) continue;  // of whole pairs
      const float gate = sums[0][i] + bias_of(p, output);
      const float up = sums[1][i] + bias_of(p, output + kTileOutputs);
      store_output(p, row * (p.out_features / 2) + pair * kTileOutputs + place,
                   gate / (1.0f + expf(-gate)) * up);
      continue;
    }
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
      const std::int64_t own = output + tile * kTileOutputs;
      if (own >= p.out_features) continue;
      store_output(p, row * p.out_features + own, sums[tile][i] + bias_of(p, own));
    }
  }
}

// T: bf16 or f16. Weights: of few_row_weights.cuh. kRowTiles: tiles of 8 rows that a
// block has.
template <class T, class Weights, int kRowTiles>
struct FewRowStage {
  static constexpr int kRowBytes = sizeof(T) * kRowTiles * 8 * kRowStride;
  static constexpr int kBytes = kRowBytes + kFewRowWarps * Weights::kWarpBytes;
  static constexpr std::size_t kSharedBytes = std::size_t{Weights::kStages} * kBytes;
  // Of a multiprocessor, which registers must do for. Left to itself the compiler spills some to
  // fit in one more.
  static constexpr int kBlocks = kRowTiles <= 2 ? 4 : 2;
};

// Starts copying the stage's inputs of the block's rows; zeros beyond them.
template <class T, int kRowTiles>
__device__ void copy_rows(const FewRowParams& p, int first_row, int stage, unsigned char* memory) {
  constexpr int kChunks = kStageInputs / 8;
  const T* const x = static_cast<const T*>(p.x);
  T* const to = reinterpret_cast<T*>(memory);
#pragma unroll
  for (int i = threadIdx.x; i < kRowTiles * 8 * kChunks; i += kFewRowThreads) {
    const int row = first_row + i / kChunks;
    const int d = i % kChunks * 8;
    const std::int64_t input = std::int64_t{stage} * kStageInputs + d;
    const bool valid = row < p.rows && input < p.in_features;
    copy_async(to + i / kChunks * kRowStride + d, x + (valid ? row * p.in_features + input : 0),
               valid);
  }
}

template <class T, class Weights, int kRowTiles>
__global__ void __launch_bounds__(kFewRowThreads, FewRowStage<T, Weights, kRowTiles>::kBlocks)
    few_row_product(const __grid_constant__ FewRowArgs args) {
  using Stage = FewRowStage<T, Weights, kRowTiles>;
  const FewRowParams& p = args.p;
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kFewRowWarps + warp;
  const int first_row = static_cast<int>(blockIdx.z) * kRowTiles * 8;
  const auto first_stage = [&](unsigned split) {
    return static_cast<int>(std::int64_t{split} * args.stages / args.splits);
  };
  const int begin = first_stage(blockIdx.y);
  const int end = first_stage(blockIdx.y + 1);
  const auto memory_of = [&](int stage) {
    return dynamic_shared() + stage % Weights::kStages * Stage::kBytes;
  };
  const auto start = [&](int stage) {
    if (stage < end) {
      unsigned char* const memory = memory_of(stage);
      copy_rows<T, kRowTiles>(p, first_row, stage, memory);
      Weights::copy(p, pair, stage, lane, memory + Stage::kRowBytes + warp * Weights::kWarpBytes);
    }
    commit_copies();
  };

  using Sums = float[kRowTiles][kWarpTiles][4];
  Sums total = {};
  // Of values without their scales, and of the inputs alone, in the group at hand.
  [[maybe_unused]] std::conditional_t<Weights::kScaled, Sums, int> of_group = {};
  [[maybe_unused]] float of_inputs[kRowTiles][4] = {};
  [[maybe_unused]] const bool has_offsets = p.zeros != nullptr || p.offsets != nullptr;
  // Groups are of 2^n steps; without any all bits are set.
  [[maybe_unused]] const int last_of_group = static_cast<int>(p.group_size / 16) - 1;

  for (int stage = begin; stage < begin + Weights::kStages - 1; ++stage) start(stage);
  for (int stage = begin; stage < end; ++stage) {
    wait_copies_but<Weights::kStages - 2>();
    __syncthreads();  // the stage is there, and the one before is no longer needed
    start(stage + Weights::kStages - 1);
    __syncwarp();  // lanes copied what was theirs
    const unsigned char* const memory = memory_of(stage);
    const T* const rows = reinterpret_cast<const T*>(memory) + lane % 8 * kRowStride + lane / 8 * 8;
    const typename Weights::Held held(p, memory + Stage::kRowBytes + warp * Weights::kWarpBytes,
                                      lane);
    Registers4 b[kRowTiles];
#pragma unroll
    for (int step = 0; step < kStageSteps; ++step) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles && step % 2 == 0; ++tile) {
        b[tile] = load_matrices(rows + tile * 8 * kRowStride + step * 16);  // of two steps
      }
      const auto multiply = [&](const std::uint32_t (&a)[4], int tile, float (&sums)[4]) {
        multiply_add<T>(sums, a, b[tile].word[step % 2 * 2], b[tile].word[step % 2 * 2 + 1]);
      };
#pragma unroll
      for (int own = 0; own < kWarpTiles; ++own) {
        std::uint32_t a[4];
        held.load(own, step, a);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          if constexpr (Weights::kScaled) {
            multiply(a, tile, of_group[tile][own]);
          } else {
            multiply(a, tile, total[tile][own]);
          }
        }
      }
      if constexpr (Weights::kScaled) {
        if (has_offsets) {
          constexpr std::uint32_t kOnes = Halves<T>::kOnes;
          const std::uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) multiply(ones, tile, of_inputs[tile]);
        }
        const int next = stage * kStageSteps + step + 1;
        if ((next & last_of_group) == 0 || next == end * kStageSteps) {
          held.add_group(step, of_group, of_inputs, has_offsets, total);
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row_tile = first_row / 8 + tile;
    if (pair >= args.pairs || row_tile >= args.row_tiles) continue;
    if (args.splits == 1) {
      store_sums(p, pair, row_tile, lane, total[tile]);
      continue;
    }
    const std::int64_t place = (blockIdx.y * args.pairs + pair) * args.row_tiles + row_tile;
#pragma unroll
    for (int own = 0; own < kWarpTiles; ++own) {
      const float (&sums)[4] = total[tile][own];
      args.sums[(place * kWarpTiles + own) * kLanes + lane] = {sums[0], sums[1], sums[2], sums[3]};
    }
  }
}

}  // namespace trtspec::cuda
