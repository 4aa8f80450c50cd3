#include "linear_kernel.hpp"

#include "gemm_block.hpp"
#include "linear_panels.hpp"
#include "parallel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

// Inputs whose weights are one element.
template <class Weight>
constexpr std::int64_t kInputs = 1;
template <>
constexpr std::int64_t kInputs<bf16_pair> = 2;

// One panel of 64 outputs for `rows` rows: the weights are read once, a step of k at a time; the
// sums wait in memory between steps.
template <class Weight>
void multiply_panel(const LinearParams& params, std::int64_t panel, std::int64_t next,
                    const float* x, std::int64_t x_stride, std::int64_t rows, float* sums) {
  const std::int64_t depth = params.in_features;
  const Weight* weights = static_cast<const Weight*>(params.packed);
  const Weight* w = weights + panel * depth / kInputs<Weight> * kPanel;
  constexpr int kRowBytes = int(kPanel * sizeof(Weight) / kInputs<Weight>);
  constexpr std::int64_t kStep = kStepBytes / kRowBytes;
  for (std::int64_t k = 0; k == 0 || k < depth; k += kStep) {
    const std::int64_t n = depth - k < kStep ? depth - k : kStep;
    const Weight* part = w + k / kInputs<Weight> * kPanel;
    // Meanwhile the next step's weights come from memory, a share with each block of rows.
    StreamAhead<kRowBytes / 64> ahead{weights_behind(weights, kRowBytes, depth, panel, next, k + n),
                                      kRowBytes / row_blocks(rows)};
    gemm_block(rows, kPanel, n, x + k, x_stride, part, kPanel, sums, kPanel, k == 0, ahead);
  }
}

// `Value`: of what stands around the product.
template <class Value, class Weight = Value>
void run(const LinearParams& params, const float* x, std::int64_t x_stride) {
  run_panels<Value>(params, [&](std::int64_t panel, std::int64_t next, std::int64_t first,
                                std::int64_t rows, float* sums) {
    multiply_panel<Weight>(params, panel, next, x + first * x_stride, x_stride, rows, sums);
  });
}

template <class Value>
void convert(const LinearParams& params, float* out, std::int64_t out_stride) {
  const std::int64_t depth = params.in_features;
  const int threads = threads_for(double(params.rows) * double(depth), kGrain);
  parallel_for(params.rows, threads, [&](std::int64_t r, int) {
    const Value* from = static_cast<const Value*>(params.x) + r * depth;
    float* to = out + r * out_stride;
    std::int64_t k = 0;
    for (; k + kLanes <= depth; k += kLanes) store(to + k, load(from + k));
    for (; k < depth; ++k) to[k] = to_float(from[k]);
  });
}

}  // namespace

void linear_convert_kernel(const LinearParams& params, float* x, std::int64_t x_stride) {
  if (params.dtype == DType::bf16) {
    convert<bf16>(params, x, x_stride);
  } else if (params.dtype == DType::f16) {
    convert<f16>(params, x, x_stride);
  } else {
    convert<float>(params, x, x_stride);
  }
}

void linear_kernel(const LinearParams& params, const float* x, std::int64_t x_stride) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, x, x_stride);
    case DType::bf16:
      if (!in_pairs(params.dtype, params.in_features)) return run<bf16>(params, x, x_stride);
      return run<bf16, bf16_pair>(params, x, x_stride);
    case DType::f16: return run<f16>(params, x, x_stride);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
