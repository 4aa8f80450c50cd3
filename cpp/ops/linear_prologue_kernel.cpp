// What stands before a product, row by row: the norm of its inputs, or the gating of an MLP. Made
// here, its rows are shared between threads, and no kernel of its own has to start and end.
#include "linear_kernel.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr double kGrain = 1 << 13;  // elements worth a thread: a few microseconds
constexpr int kLane = 16;           // partial sums of a row, on every instruction set

template <class Value>
float sum_of_squares(const Value* x, std::int64_t size) {
  alignas(64) float lane[kLane] = {};
  constexpr int kVectors = kLane / kLanes;
  VF sum[kVectors] = {};
  for (std::int64_t k = 0; k < size; k += kLane) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t first = k + v * kLanes;
      if (first >= size) break;
      const VF value = load_first(x + first, size - first);
      sum[v] = fma(value, value, sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store(lane + v * kLanes, sum[v]);
  return sum16(lane);
}

// What is made of a row: its first values, in blocks that are `stride` values apart.
template <class Value>
struct Made {
  Value* first;
  std::int64_t size;
  std::int64_t block;
  std::int64_t stride;

  // body(k, to) for every vector of values from k on, with the place for it.
  template <class Body>
  TRTSPEC_INLINE void for_vectors(const Body& body) const {
    Value* to = first;
    for (std::int64_t begin = 0; begin < size; begin += block, to += stride) {
      for (std::int64_t k = 0; k < block; k += kLanes) body(begin + k, to + k);
    }
  }
};

template <class Value>
void copy(const Value* x, const Made<Value>& made) {
  made.for_vectors([&](std::int64_t k, Value* to) {
    store_first(to, load_first(x + k, made.size - k), made.size - k);
  });
}

template <class Value>
void rms_norm(const Value* x, const Value* weight, float eps, const Made<Value>& made) {
  const float squares = sum_of_squares(x, made.size);
  const float factor = 1.0f / __builtin_sqrtf(squares / float(made.size) + eps);
  made.for_vectors([&](std::int64_t k, Value* to) {
    const std::int64_t count = made.size - k;
    store_first(to, load_first(x + k, count) * factor, count);
    store_first(to, load_first(to, count) * load_first(weight + k, count), count);
  });
}

template <class Value>
void swiglu(const Value* x, const Made<Value>& made) {
  made.for_vectors([&](std::int64_t k, Value* to) {
    const std::int64_t count = made.size - k;
    const VF gate = load_first(x + k, count), up = load_first(x + made.size + k, count);
    store_first(to, gate / (1.0f + exp(-gate)) * up, count);
  });
}

template <class Value>
void run(const LinearParams& params, Value* out, std::int64_t block) {
  const std::int64_t size = params.in_features;
  const Value* x = static_cast<const Value*>(params.x);
  const int threads = threads_for(double(params.rows) * double(size), kGrain);
  parallel_for(params.rows, threads, [&](std::int64_t r, int) {
    const Made<Value> made{out + r * block, size, block, params.rows * block};
    switch (params.prologue) {
      case Prologue::none: return copy(x + r * size, made);
      case Prologue::rms_norm:
        return rms_norm(x + r * size, static_cast<const Value*>(params.norm), params.eps, made);
      case Prologue::swiglu: return swiglu(x + r * 2 * size, made);
    }
  });
}

}  // namespace

void linear_prologue_kernel(const LinearParams& params, void* out, std::int64_t block) {
  switch (params.dtype) {
    case DType::f32: return run(params, static_cast<float*>(out), block);
    case DType::bf16: return run(params, static_cast<bf16*>(out), block);
    case DType::f16: return run(params, static_cast<f16*>(out), block);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
