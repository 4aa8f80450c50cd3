#include "linear_kernel.hpp"

#include "gemm_block.hpp"
#include "parallel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr std::int64_t kMaxRows = 192;      // rows of one task: their sums take 48 KiB of stack
constexpr std::int64_t kMinRows = 24;       // fewer are not worth a task of their own
constexpr std::int64_t kStepBytes = 32768;  // weights that stay in the first-level cache for a step
constexpr double kGrain = 1 << 20;          // multiply-adds that are worth a thread: tens of microseconds

// One panel of 64 outputs for `rows` rows: the weights are read once, a step of k at a time; the
// sums wait in memory between steps.
template <class Weight>
void multiply_panel(const LinearParams& params, std::int64_t panel, const float* x,
                    std::int64_t x_stride, std::int64_t rows, float* sums) {
  const std::int64_t depth = params.in_features;
  const Weight* w = static_cast<const Weight*>(params.packed) + panel * depth * kPanel;
  constexpr int kRowBytes = int(kPanel * sizeof(Weight));
  constexpr std::int64_t kStep = kStepBytes / kRowBytes;
  for (std::int64_t k = 0; k == 0 || k < depth; k += kStep) {
    const std::int64_t n = depth - k < kStep ? depth - k : kStep;
    const Weight* part = w + k * kPanel;
    // Meanwhile the next step's weights come from memory, a share with each block of rows. (Past
    // the end of the weights a prefetch does nothing.)
    StreamAhead<kRowBytes / 64> ahead{reinterpret_cast<const char*>(part + n * kPanel),
                                      kRowBytes / row_blocks(rows)};
    gemm_block(rows, kPanel, n, x + k, x_stride, part, kPanel, sums, kPanel, k == 0, ahead);
  }
}

template <class Weight, class Out>
void finish_panel(const LinearParams& params, std::int64_t panel, std::int64_t first_row,
                  std::int64_t rows, float* sums) {
  const std::int64_t first = panel * kPanel;
  const std::int64_t columns =
      params.out_features - first < kPanel ? params.out_features - first : kPanel;
  const Weight* bias =
      params.bias == nullptr ? nullptr : static_cast<const Weight*>(params.bias) + first;
  Out* out = static_cast<Out*>(params.out) + first_row * params.out_features + first;
  for (std::int64_t r = 0; r < rows; ++r, out += params.out_features, sums += kPanel) {
    std::int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      const VF sum = load(sums + c);
      store(out + c, bias == nullptr ? sum : sum + load(bias + c));
    }
    for (; c < columns; ++c) {
      from_float(bias == nullptr ? sums[c] : sums[c] + to_float(bias[c]), out + c);
    }
  }
}

template <class Weight, class Out>
void run(const LinearParams& params, const float* x, std::int64_t x_stride) {
  const std::int64_t panels = (params.out_features + kPanel - 1) / kPanel;
  const double per_row = double(params.in_features) * double(params.out_features);
  const int threads =
      threads_for(per_row * double(params.rows < 4 ? 4 : params.rows), kGrain);
  std::int64_t chunks = (params.rows + kMaxRows - 1) / kMaxRows;
  while (threads > 1 && panels * chunks < 4 * threads && params.rows / chunks >= 2 * kMinRows) {
    ++chunks;
  }
  parallel_for(panels * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t panel = task / chunks;
    const std::int64_t chunk = task % chunks;
    const std::int64_t first = params.rows * chunk / chunks;
    const std::int64_t rows = params.rows * (chunk + 1) / chunks - first;
    alignas(64) float sums[kMaxRows * kPanel];
    multiply_panel<Weight>(params, panel, x + first * x_stride, x_stride, rows, sums);
    finish_panel<Weight, Out>(params, panel, first, rows, sums);
  });
}

template <class Weight>
void run(const LinearParams& params, const float* x, std::int64_t x_stride) {
  switch (params.out_dtype) {
    case DType::f32:
      return run<Weight, float>(params, x, x_stride);
    case DType::bf16:
      return run<Weight, bf16>(params, x, x_stride);
    case DType::f16:
      return run<Weight, f16>(params, x, x_stride);
  }
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
    case DType::f32:
      return run<float>(params, x, x_stride);
    case DType::bf16:
      return run<bf16>(params, x, x_stride);
    case DType::f16:
      return run<f16>(params, x, x_stride);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
