// The linear op with int8 weights and float inputs: every block of rows makes floats of the weights
// in registers. (Floats made once for many rows, in the first-level cache, take longer to store and
// load again than they save.)
#include "gemm_block.hpp"
#include "linear_int8_step.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

void multiply_panel(const LinearInt8Params& params, std::int64_t panel, std::int64_t next,
                    const float* x, std::int64_t x_stride, std::int64_t rows, float* sums) {
  for_steps<1>(params, panel, next, row_blocks(rows), [&](std::int64_t k, std::int64_t n,
                                                          const std::int8_t* w,
                                                          const float* scales, auto& ahead) {
    for_row_blocks(rows, [&](auto count, std::int64_t block) {
      constexpr int kRows = decltype(count)::value;
      alignas(64) float part[kRows * kPanel];
      for_groups(params, scales, k, n, kRows, part, sums + block * kPanel,
                 [&](std::int64_t offset, std::int64_t depth, float* to, bool fresh) {
                   gemm_rows<kRows>(kPanel, depth, x + block * x_stride + k + offset, x_stride,
                                    w + offset * kPanel, kPanel, to, kPanel, fresh, ahead);
                 });
    });
  });
}

template <class Value>
void run(const LinearInt8Params& params, const float* x, std::int64_t x_stride) {
  run_panels<Value>(params.linear, 1, [&](std::int64_t panel, std::int64_t next,
                                          std::int64_t first, std::int64_t rows, float* sums) {
    multiply_panel(params, panel, next, x + first * x_stride, x_stride, rows, sums);
  });
}

}  // namespace

void linear_int8_kernel(const LinearInt8Params& params, const float* x, std::int64_t x_stride) {
  switch (params.linear.dtype) {
    case DType::f32:
      return run<float>(params, x, x_stride);
    case DType::bf16:
      return run<bf16>(params, x, x_stride);
    case DType::f16:
      return run<f16>(params, x, x_stride);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
