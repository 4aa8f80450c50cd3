// The walk over the panels of a linear op, shared by its kernels. Only for kernel sources.
#pragma once
#include <trtspec/linear.hpp>

#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr std::int64_t kMaxRows = 192;      // rows of one task: their sums take 48 KiB of stack
constexpr std::int64_t kMinRows = 24;       // fewer are not worth a task of their own
constexpr std::int64_t kStepBytes = 32768;  // weights that stay in the first-level cache for a step
constexpr double kGrain = 1 << 20;          // multiply-adds worth a thread: tens of microseconds

// Sums [rows][Outputs] of a panel of so many outputs become results.
template <class Weight, class Out, std::int64_t Outputs>
inline void finish_outputs(const LinearParams& params, std::int64_t panel, std::int64_t first_row,
                           std::int64_t rows, const float* sums) {
  const std::int64_t first = panel * Outputs;
  const std::int64_t columns =
      params.out_features - first < Outputs ? params.out_features - first : Outputs;
  const Weight* bias =
      params.bias == nullptr ? nullptr : static_cast<const Weight*>(params.bias) + first;
  const std::int64_t offset = first_row * params.out_features + first;
  Out* out = static_cast<Out*>(params.out) + offset;
  const Out* residual =
      params.residual == nullptr ? nullptr : static_cast<const Out*>(params.residual) + offset;
  for (std::int64_t r = 0; r < rows; ++r, out += params.out_features, sums += Outputs) {
    std::int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      const VF sum = load(sums + c);
      store(out + c, bias == nullptr ? sum : sum + load(bias + c));
    }
    for (; c < columns; ++c) {
      from_float(bias == nullptr ? sums[c] : sums[c] + to_float(bias[c]), out + c);
    }
    if (residual == nullptr) continue;
    for (c = 0; c + kLanes <= columns; c += kLanes) {
      store(out + c, load(residual + c) + load(out + c));
    }
    for (; c < columns; ++c) from_float(to_float(residual[c]) + to_float(out[c]), out + c);
    residual += params.out_features;
  }
}

template <class Weight, class Out, class Multiply>
inline void run_panels(const LinearParams& params, const Multiply& multiply) {
  const std::int64_t panels = (params.out_features + kPanel - 1) / kPanel;
  const double per_row = double(params.in_features) * double(params.out_features);
  const int threads = threads_for(per_row * double(params.rows < 4 ? 4 : params.rows), kGrain);
  std::int64_t chunks = (params.rows + kMaxRows - 1) / kMaxRows;
  while (threads > 1 && panels * chunks < 4 * threads && params.rows / chunks >= 2 * kMinRows) {
    ++chunks;
  }
  constexpr std::int64_t kBytes = sizeof(Weight);
  if (threads > 1) read_next(params.packed, panels * kPanel * params.in_features * kBytes);
  parallel_for(panels * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t panel = task / chunks;
    const std::int64_t chunk = task % chunks;
    const std::int64_t first = params.rows * chunk / chunks;
    const std::int64_t rows = params.rows * (chunk + 1) / chunks - first;
    alignas(64) float sums[kMaxRows * kPanel];
    const std::int64_t next = (task + 1) / chunks;  // which this thread is likely to take then
    multiply(panel, next, first, rows, sums);
    finish_outputs<Weight, Out, kPanel>(params, panel, first, rows, sums);
  });
}

// multiply(panel, next_panel, first_row, rows, sums) for every panel of 64 outputs, and every part
// of many rows: sums [rows][64] are then finished (bias, rounding) and stored. The next panel is
// that whose weights are to be fetched meanwhile; it may lie behind the last one, where a prefetch
// does no harm. Weights, and what stands around the product, are of type Weight.
template <class Weight, class Multiply>
inline void run_panels(const LinearParams& params, const Multiply& multiply) {
  switch (params.out_dtype) {
    case DType::f32: return run_panels<Weight, float>(params, multiply);
    case DType::bf16: return run_panels<Weight, bf16>(params, multiply);
    case DType::f16: return run_panels<Weight, f16>(params, multiply);
  }
}

// The same for rows of bfloat16 that are read as they are: multiply(panel, next_panel, x, rows,
// sums).
template <class Multiply>
inline void run_bf16_panels(const LinearParams& params, const Multiply& multiply) {
  const bf16* x = static_cast<const bf16*>(params.x);
  run_panels<bf16>(params, [&](std::int64_t panel, std::int64_t next, std::int64_t first,
                               std::int64_t rows, float* sums) {
    multiply(panel, next, x + first * params.in_features, rows, sums);
  });
}

// What a thread reads once it has multiplied the first `end` inputs of a panel, whose weights take
// `row_bytes` each: its next ones, or the first ones of the next panel.
TRTSPEC_INLINE const char* weights_behind(const void* packed, std::int64_t row_bytes,
                                          std::int64_t depth, std::int64_t panel, std::int64_t next,
                                          std::int64_t end) {
  const std::int64_t input = end < depth ? panel * depth + end : next * depth;
  return static_cast<const char*>(packed) + input * row_bytes;
}

}  // namespace trtspec::TRTSPEC_ISA_NS
