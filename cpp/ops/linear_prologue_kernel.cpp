// What stands before a product, row by row: the norm of its inputs, or the gating of an MLP. Made
// here, its rows are shared between threads, and no kernel of its own has to start and end.
#include "linear_kernel.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr double kGrain = 1 << 13;  // elements worth a thread: a few microseconds
constexpr int kLane = 16;           // partial sums of a row, on every instruction set

// A vector of the values from here to the end of a row, with zeros behind the last `count`.
template <class Value>
TRTSPEC_INLINE VF load_part(const Value* from, std::int64_t count) {
  if (count >= kLanes) return load(from);
  alignas(64) float part[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) part[i] = to_float(from[i]);
  return load(part);
}

template <class Value>
TRTSPEC_INLINE void store_part(Value* to, std::int64_t count, VF value) {
  if (count >= kLanes) return store(to, value);
  alignas(64) float part[kLanes];
  store(part, value);
  for (std::int64_t i = 0; i < count; ++i) from_float(part[i], to + i);
}

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
      const VF value = load_part(x + first, size - first);
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
    store_part(to, made.size - k, load_part(x + k, made.size - k));
  });
}

template <class Value>
void rms_norm(const Value* x, const Value* weight, float eps, const Made<Value>& made) {
  const float squares = sum_of_squares(x, made.size);
  const float factor = 1.0f / __builtin_sqrtf(squares / float(made.size) + eps);
  made.for_vectors([&](std::int64_t k, Value* to) {
    const std::int64_t count = made.size - k;
    store_part(to, count, load_part(x + k, count) * factor);
    store_part(to, count, load_part(to, count) * load_part(weight + k, count));
  });
}

template <class Value>
void swiglu(const Value* x, const Made<Value>& made) {
  made.for_vectors([&](std::int64_t k, Value* to) {
    const std::int64_t count = made.size - k;
    const VF gate = load_part(x + k, count), up = load_part(x + made.size + k, count);
    store_part(to, count, gate / (1.0f + exp(-gate)) * up);
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
    case DType::f32:
      return run(params, static_cast<float*>(out), block);
    case DType::bf16:
      return run(params, static_cast<bf16*>(out), block);
    case DType::f16:
      return run(params, static_cast<f16*>(out), block);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
