#include "head_products_kernel.hpp"

#include "gemm_block.hpp"
#include "parallel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void multiply_block(const HeadProductsParams& p, std::int64_t head, std::int64_t first,
                    std::int64_t rows, float* x, float* sums) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Value* from =
        static_cast<const Value*>(p.x) + (first + r) * p.x_row_stride + head * p.x_head_stride;
    float* to = x + r * p.inputs;
    std::int64_t k = 0;
    for (; k + kLanes <= p.inputs; k += kLanes) store(to + k, load(from + k));
    for (; k < p.inputs; ++k) to[k] = to_float(from[k]);
  }
  const Value* weight = static_cast<const Value*>(p.weight) + head * p.inputs * p.outputs;
  const std::int64_t wide = padded_outputs(p.outputs);
  const std::int64_t whole = p.outputs / kLanes * kLanes;
  NothingAhead ahead;
  gemm_block(rows, whole, p.inputs, x, p.inputs, weight, p.outputs, sums, wide, true, ahead);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = whole; n < p.outputs; ++n) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.inputs; ++k) {
        sum += x[r * p.inputs + k] * to_float(weight[k * p.outputs + n]);
      }
      sums[r * wide + n] = sum;
    }
    Value* to = static_cast<Value*>(p.out) + ((first + r) * p.heads + head) * p.outputs;
    for (std::int64_t n = 0; n < whole; n += kLanes) store(to + n, load(sums + r * wide + n));
    for (std::int64_t n = whole; n < p.outputs; ++n) from_float(sums[r * wide + n], to + n);
  }
}

template <class Value>
void run(const HeadProductsParams& p, float* scratch, int threads) {
  const std::int64_t blocks = (p.rows + kProductRows - 1) / kProductRows;
  const std::int64_t size = kProductRows * (p.inputs + padded_outputs(p.outputs));
  parallel_for(p.heads * blocks, threads, [&](std::int64_t i, int thread) {
    const std::int64_t block = i % blocks;
    const std::int64_t first = p.rows * block / blocks;
    float* own = scratch + thread * size;
    multiply_block<Value>(p, i / blocks, first, p.rows * (block + 1) / blocks - first, own,
                          own + kProductRows * p.inputs);
  });
}

}  // namespace

void head_products_kernel(const HeadProductsParams& params, float* scratch, int threads) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, scratch, threads);
    case DType::bf16: return run<bf16>(params, scratch, threads);
    case DType::f16: return run<f16>(params, scratch, threads);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
