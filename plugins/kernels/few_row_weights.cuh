// How few_row_linear reads each kind of weights: what a warp copies for a stage, and the fragments
// that a lane makes of it. The layouts are those of trtspec/ops/few_row_linear.py.
#pragma once

#include <kernels.hpp>

#include "device.cuh"

namespace trtspec::cuda {

inline constexpr int kStageInputs = 64;                // that a stage of copies has, of W and of x
inline constexpr int kStageSteps = kStageInputs / 16;  // of mma.m16n8k16
inline constexpr int kTileOutputs = 16;
inline constexpr int kWarpTiles = 2;  // of outputs: with SwiGLU a gate's and the one it is for
inline constexpr int kRowStride = kStageInputs + 8;  // rows in shared memory lie in different banks

// The few bits of T that values are made of.
template <class T>
struct Halves;
template <>
struct Halves<bf16> {
  static constexpr int kMantissa = 7;
  static constexpr int kBias = 127;
  static constexpr std::uint32_t kOnes = 0x3f803f80u;
  static constexpr std::uint32_t kWhole = 0x43004300u;  // 128, above which all numbers are whole
};
template <>
struct Halves<f16> {
  static constexpr int kMantissa = 10;
  static constexpr int kBias = 15;
  static constexpr std::uint32_t kOnes = 0x3c003c00u;
  static constexpr std::uint32_t kWhole = 0x64006400u;  // 1024
};

inline constexpr std::uint32_t kSigns = 0x80008000u;

// Values of few bits. `decode` makes the pair of T from those that lie in the highest bits of both
// halves of a word; the bits below belong to others. No value is rounded.
struct Int4 {  // the value plus 8
  static constexpr int kBits = 4;
  template <class T>
  __device__ static std::uint32_t decode(std::uint32_t top) {
    constexpr std::uint32_t kWhole = Halves<T>::kWhole;
    const std::uint32_t raised = (top >> 12 & 0x000f000fu) | kWhole;
    return multiply_add_pairs<T>(raised, Halves<T>::kOnes, kWhole | kSigns | 0x00080008u);
  }
};
struct Int8 {
  static constexpr int kBits = 8;
  template <class T>
  __device__ static std::uint32_t decode(std::uint32_t top) {
    constexpr std::uint32_t kWhole = Halves<T>::kWhole;
    const std::uint32_t bits = top >> 8;
    const std::uint32_t raised = (bits & 0x007f007fu) | kWhole;
    const std::uint32_t below = (bits & 0x00800080u) | kWhole | kSigns;  // 128 lower if negative
    return multiply_add_pairs<T>(raised, Halves<T>::kOnes, below);
  }
};
// Floats whose bits, moved to where T has its exponent, are off by a power of two.
template <int kBits_, int kMantissa, int kBias>
struct SmallFloat {
  static constexpr int kBits = kBits_;
  template <class T>
  __device__ static std::uint32_t decode(std::uint32_t top) {
    using Half = Halves<T>;
    constexpr int kShift = 16 - kBits + kMantissa - Half::kMantissa;
    constexpr std::uint32_t kMagnitude = (0x7fffu >> (16 - kBits)) << (16 - kBits);
    constexpr std::uint32_t kFactor = std::uint32_t(2 * Half::kBias - kBias) << Half::kMantissa;
    const std::uint32_t moved = (top & kSigns) | ((top & kMagnitude * 0x10001u) >> kShift);
    return multiply_add_pairs<T>(moved, kFactor * 0x10001u, 0);
  }
};
using E4M3 = SmallFloat<8, 3, 7>;
using E2M1 = SmallFloat<4, 1, 0>;  // bias 1, and doubled as their scales expect

// Weights as rows [N, K] of T.
template <class T>
struct RowWeights {
  static constexpr bool kScaled = false;
  static constexpr int kStages = 3;
  static constexpr int kMostRowTiles = 8;  // of a block
  static constexpr int kWarpBytes = sizeof(T) * kWarpTiles * kTileOutputs * kRowStride;

  // Starts copying the stage's inputs of the warp's outputs; zeros beyond N and K.
  __device__ static void copy(const FewRowParams& p, std::int64_t pair, int stage, int lane,
                              unsigned char* memory) {
    constexpr int kChunks = kStageInputs / 8;
    const T* const weight = static_cast<const T*>(p.weight);
    T* const to = reinterpret_cast<T*>(memory);
#pragma unroll
    for (int i = lane; i < kWarpTiles * kTileOutputs * kChunks; i += kLanes) {
      const int row = i / kChunks;
      const int d = i % kChunks * 8;
      const std::int64_t output = pair * (kWarpTiles * kTileOutputs) + row;
      const std::int64_t input = std::int64_t{stage} * kStageInputs + d;
      const bool valid = output < p.out_features && input < p.in_features;
      copy_async(to + row * kRowStride + d, weight + (valid ? output * p.in_features + input : 0),
                 valid);
    }
  }

  // A stage of the warp, as fragments.
  struct Held {
    const T* rows;
    int lane;

    __device__ Held(const FewRowParams&, const unsigned char* memory, int lane)
        : rows(reinterpret_cast<const T*>(memory)), lane(lane) {}

    __device__ void load(int tile, int step, std::uint32_t (&a)[4]) const {
      const int row = tile * kTileOutputs + lane % 16;
      const Registers4 found = load_matrices(rows + row * kRowStride + step * 16 + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = found.word[i];
    }
  };
};

// Weights as fragments of packed values, with a scale, and perhaps a zero point or a minimum, for
// each group of inputs. A lane reads the values that it copied itself.
template <class T, class Value>
struct PackedWeights {
  static constexpr bool kScaled = true;
  static constexpr int kStages = 4;
  static constexpr int kMostRowTiles = 4;  // with more, the sums of groups would not fit registers
  static constexpr int kParts = Value::kBits / 4;  // of 16 bytes a lane, in a tile of a stage
  static constexpr int kValueBytes = kWarpTiles * kParts * kLanes * 16;
  static constexpr int kMostGroups = kStageInputs / 16;  // of a stage
  static constexpr int kScaleBytes = kWarpTiles * kMostGroups * kTileOutputs * 4;
  static constexpr int kWarpBytes = kValueBytes + 2 * kScaleBytes;

  // Groups that a stage has inputs of.
  __device__ static int groups_of_stage(const FewRowParams& p) {
    return p.group_size == 0 || p.group_size >= kStageInputs
               ? 1
               : kStageInputs / static_cast<int>(p.group_size);
  }

  __device__ static void copy(const FewRowParams& p, std::int64_t pair, int stage, int lane,
                              unsigned char* memory) {
    const std::int64_t tiles = divide_up(p.out_features, kTileOutputs);
    const std::int64_t stages = divide_up(p.in_features, kStageInputs);
    const auto* const values = static_cast<const unsigned char*>(p.weight);
#pragma unroll
    for (int i = 0; i < kWarpTiles * kParts; ++i) {
      const std::int64_t tile = pair * kWarpTiles + i / kParts;
      const bool valid = tile < tiles;
      const std::int64_t from = ((tile * stages + stage) * kParts + i % kParts) * kLanes + lane;
      copy_async(memory + (i * kLanes + lane) * 16, values + (valid ? from * 16 : 0), valid);
    }
    const int size = static_cast<int>(size_of(p.scale_dtype));
    copy_groups(p, pair, stage, lane, p.scales, size, memory + kValueBytes);
    const void* const beside = p.zeros != nullptr ? p.zeros : p.offsets;
    if (beside == nullptr) return;
    copy_groups(p, pair, stage, lane, beside, p.zeros != nullptr ? 1 : size,
                memory + kValueBytes + kScaleBytes);
  }

  // The same of what groups have, `size` bytes each, by tile, group and output.
  __device__ static void copy_groups(const FewRowParams& p, std::int64_t pair, int stage, int lane,
                                     const void* from, int size, unsigned char* to) {
    const std::int64_t tiles = divide_up(p.out_features, kTileOutputs);
    const std::int64_t groups = p.group_size == 0 ? 1 : divide_up(p.in_features, p.group_size);
    const std::int64_t first =
        p.group_size == 0 ? 0 : std::int64_t{stage} * kStageInputs / p.group_size;
    const int pieces = groups_of_stage(p) * size;  // of 16 bytes a tile
    if (lane >= kWarpTiles * pieces) return;
    const std::int64_t tile = pair * kWarpTiles + lane / pieces;
    const int piece = lane % pieces;
    const bool valid = tile < tiles && first + piece / size < groups;
    const std::int64_t at = (tile * groups + first) * size + piece;
    copy_async(to + lane * 16, static_cast<const unsigned char*>(from) + (valid ? at * 16 : 0),
               valid);
  }

  struct Held {
    const FewRowParams& p;
    const unsigned char* scales;
    int first;   // the lane's first output of a tile; the other is 8 above
    int groups;  // of the stage
    std::uint32_t words[kWarpTiles][kParts * 4];

    __device__ Held(const FewRowParams& p, const unsigned char* memory, int lane)
        : p(p), scales(memory + kValueBytes), first(lane / 4), groups(groups_of_stage(p)) {
#pragma unroll
      for (int i = 0; i < kWarpTiles * kParts; ++i) {
        const uint4 found = *reinterpret_cast<const uint4*>(memory + (i * kLanes + lane) * 16);
        std::uint32_t* const to = words[i / kParts] + i % kParts * 4;
        to[0] = found.x, to[1] = found.y, to[2] = found.z, to[3] = found.w;
      }
    }

    __device__ void load(int tile, int step, std::uint32_t (&a)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = Value::kBits == 4
                                       ? words[tile][step] << (12 - 4 * i)
                                       : words[tile][step * 2 + i / 2] << (i % 2 == 0 ? 8 : 0);
        a[i] = Value::template decode<T>(word);
      }
    }

    // Adds the sums of the group of a step to the totals, scaled, and begins others.
    template <int kRowTiles>
    __device__ void add_group(int step, float (&of_group)[kRowTiles][kWarpTiles][4],
                              float (&of_inputs)[kRowTiles][4], bool has_offsets,
                              float (&total)[kRowTiles][kWarpTiles][4]) const {
#pragma unroll
      for (int own = 0; own < kWarpTiles; ++own) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 by = factors(own, step, half);
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              float& sum = total[tile][own][i];
              sum = fmaf(of_group[tile][own][i], by.x, sum);
              if (has_offsets) sum = fmaf(of_inputs[tile][i], by.y, sum);
              of_group[tile][own][i] = 0.0f;
            }
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of_inputs[tile][i] = 0.0f;
      }
    }

    // The scale of a lane's output in the group of a step, and what the group's inputs, all of
    // them, are multiplied by as well.
    __device__ float2 factors(int tile, int step, int half) const {
      const int group = step * groups / kStageSteps;
      const int at = (tile * groups + group) * kTileOutputs + first + 8 * half;
      const float scale = read(scales, at);
      if (p.zeros != nullptr) {
        return {scale, -scale * reinterpret_cast<const std::int8_t*>(scales + kScaleBytes)[at]};
      }
      return {scale, p.offsets == nullptr ? 0.0f : read(scales + kScaleBytes, at)};
    }

    __device__ float read(const unsigned char* from, int at) const {
      if (p.scale_dtype == DType::f32) return reinterpret_cast<const float*>(from)[at];
      const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(from)[at];
      return p.scale_dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    }
  };
};

}  // namespace trtspec::cuda
