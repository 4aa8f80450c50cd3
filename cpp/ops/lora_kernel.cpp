#include "lora_kernel.hpp"

#include "gemm_block.hpp"
#include "parallel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr double kGrain = 1 << 18;  // multiply-adds that are worth a thread

// sums[r][c] = x[r][0] * w[0][c] + x[r][1] * w[1][c] + ... for `columns` columns. Those behind the
// last whole vector are the same ones in every call of a layer, whose tasks begin at whole vectors.
template <class Value>
void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* x,
              std::int64_t x_stride, const Value* w, std::int64_t w_stride, float* sums,
              std::int64_t sums_stride) {
  const std::int64_t whole = columns / kLanes * kLanes;
  NothingAhead ahead;
  gemm_block(rows, whole, depth, x, x_stride, w, w_stride, sums, sums_stride, true, ahead);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = whole; c < columns; ++c) {
      float sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        sum += x[r * x_stride + k] * to_float(w[k * w_stride + c]);
      }
      sums[r * sums_stride + c] = sum;
    }
  }
}

// Adds sums to what lies in `out`, the residual.
template <class Out>
void add(const float* sums, std::int64_t count, Out* out) {
  std::int64_t c = 0;
  Out rounded[kLanes];
  for (; c + kLanes <= count; c += kLanes) {
    store(rounded, load(sums + c));
    store(out + c, load(out + c) + load(rounded));
  }
  for (; c < count; ++c) {
    from_float(sums[c], rounded);
    from_float(to_float(out[c]) + to_float(rounded[0]), out + c);
  }
}

template <class Value>
void run_inner(const LoraParams& params, const LoraTasks& tasks) {
  const std::int64_t depth = params.linear.in_features;
  const std::int64_t wide = params.num_parts * params.rank;
  const std::int64_t chunks = tasks.inner_stride / kLoraInner;
  const std::int64_t count = tasks.num_rows * chunks;
  const LoraRows& last = tasks.rows[tasks.num_rows - 1];
  const double work = double(last.first + last.count) * double(depth) * double(wide);
  parallel_for(count, threads_for(work, kGrain), [&](std::int64_t task, int) {
    const LoraRows& own = tasks.rows[task / chunks];
    const std::int64_t first = task % chunks * kLoraInner;
    const std::int64_t columns = wide - first < kLoraInner ? wide - first : kLoraInner;
    const Value* a = static_cast<const Value*>(params.a) + own.adapter * depth * wide;
    multiply(own.count, columns, depth, tasks.x + own.first * tasks.x_stride, tasks.x_stride,
             a + first, wide, tasks.inner + own.first * tasks.inner_stride + first,
             tasks.inner_stride);
  });
}

template <class Value, class Out>
void run_outputs(const LoraParams& params, const LoraTasks& tasks) {
  const std::int64_t outputs = params.linear.out_features, rank = params.rank;
  const std::int64_t chunks = tasks.num_outputs;
  const std::int64_t count = tasks.num_rows * chunks;
  const LoraRows& last = tasks.rows[tasks.num_rows - 1];
  const double work = double(last.first + last.count) * double(outputs) * double(rank);
  parallel_for(count, threads_for(work, kGrain), [&](std::int64_t task, int) {
    const LoraRows& own = tasks.rows[task / chunks];
    const LoraOutputs& wanted = tasks.outputs[task % chunks];
    const Value* b = static_cast<const Value*>(params.b) + own.adapter * rank * outputs;
    alignas(64) float sums[kLoraRows * kLoraOutputs];
    const float* inner = tasks.inner + own.first * tasks.inner_stride + wanted.part * rank;
    multiply(own.count, wanted.count, rank, inner, tasks.inner_stride, b + wanted.first, outputs,
             sums, kLoraOutputs);
    for (std::int64_t r = 0; r < own.count; ++r) {
      Out* out = static_cast<Out*>(params.linear.out) + tasks.places[own.first + r] * outputs;
      add(sums + r * kLoraOutputs, wanted.count, out + wanted.first);
    }
  });
}

template <class Value>
void run(const LoraParams& params, const LoraTasks& tasks) {
  run_inner<Value>(params, tasks);
  switch (params.linear.out_dtype) {
    case DType::f32: return run_outputs<Value, float>(params, tasks);
    case DType::bf16: return run_outputs<Value, bf16>(params, tasks);
    case DType::f16: return run_outputs<Value, f16>(params, tasks);
  }
}

}  // namespace

void lora_kernel(const LoraParams& params, const LoraTasks& tasks) {
  switch (params.linear.dtype) {
    case DType::f32: return run<float>(params, tasks);
    case DType::bf16: return run<bf16>(params, tasks);
    case DType::f16: return run<f16>(params, tasks);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
