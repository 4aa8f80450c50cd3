// Columns of a head's state do not meet: a task takes some of one head, loads them once, and goes
// with them through all rows of its request, in copies where a tree branches.
#include "gated_delta_kernel.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr int kGroup = 4;  // vectors of columns at once: their chains hide each other's latency
constexpr std::int64_t kColumns = kGroup * kLanes;
constexpr float kTiny = 1e-6f;  // added to the square of a length, as in the models' own code

// x / |x| times a factor, in 16 sums of squares by element, so that all instruction sets agree.
template <class Value>
void normalise(const Value* x, std::int64_t count, float factor, float* to) {
  float sums[16] = {};
  const auto take = [&](std::int64_t i, std::int64_t lane) {
    to[i] = to_float(x[i]);
    sums[lane] += to[i] * to[i];
  };
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (std::int64_t lane = 0; lane < 16; ++lane) take(i + lane, lane);
  }
  for (std::int64_t lane = 0; i + lane < count; ++lane) take(i + lane, lane);
  const float scale = factor / __builtin_sqrtf(sum16(sums) + kTiny);
  for (i = 0; i < count; ++i) to[i] *= scale;
}

// Linear where it is so within a float.
float softplus(float x) { return x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x)); }

template <class Value>
void prepare_row(const GatedDeltaParams& p, std::int64_t row, float* to) {
  const std::int64_t keys = p.key_heads * p.key_dim;
  const auto* q = static_cast<const Value*>(p.qkv) + row * (2 * keys + p.value_heads * p.value_dim);
  const float scale = 1.0f / __builtin_sqrtf(float(p.key_dim));
  for (std::int64_t h = 0; h < p.key_heads; ++h) {
    const std::int64_t at = h * p.key_dim;
    normalise(q + at, p.key_dim, scale, to + 2 * at);
    normalise(q + keys + at, p.key_dim, 1.0f, to + 2 * at + p.key_dim);
  }
  const auto* gates = static_cast<const Value*>(p.gates) + row * 2 * p.value_heads;
  for (std::int64_t h = 0; h < p.value_heads; ++h) {
    const float beta = 1.0f / (1.0f + __builtin_expf(-to_float(gates[h])));
    const float step = softplus(to_float(gates[p.value_heads + h]) + p.dt_bias[h]);
    float* own = to + 2 * (keys + h);
    own[0] = beta;
    own[1] = __builtin_expf(-__builtin_expf(p.a_log[h]) * step);
  }
}

// Some columns of one head.
template <class Value>
struct HeadColumns {
  const GatedDeltaParams& p;
  const DeltaScratch& scratch;
  float* copies;
  std::int64_t head;
  std::int64_t first;
  std::int64_t count;

  float* copy(std::int64_t index) const { return copies + index * p.key_dim * kColumns; }

  float* state(std::int64_t slot) const {
    return p.state + (slot * p.value_heads + head) * p.key_dim * p.value_dim + first;
  }

  void load_state(const StatePath& path) const {
    const float* from = state(path.slot);
    for (std::int64_t k = 0; k < p.key_dim; ++k) {
      for (int g = 0; g < kGroup; ++g) {
        const std::int64_t left = path.is_new ? 0 : count - g * kLanes;
        store(copies + k * kColumns + g * kLanes,
              load_first(from + k * p.value_dim + g * kLanes, left));
      }
    }
  }

  void store_state(const StatePath& path) const {
    float* to = state(path.slot);
    for (std::int64_t k = 0; k < p.key_dim; ++k) {
      for (int g = 0; g < kGroup; ++g) {
        store_first(to + k * p.value_dim + g * kLanes, load(copies + k * kColumns + g * kLanes),
                    count - g * kLanes);
      }
    }
  }

  void take_in(const StateStep& step) const {
    const std::int64_t keys = p.key_heads * p.key_dim;
    const float* row = scratch.rows + step.row * scratch.row_size;
    const float* q = row + p.key_head_of(head) * 2 * p.key_dim;
    const float* key = q + p.key_dim;
    const float beta = row[2 * (keys + head)];
    const float decay = row[2 * (keys + head) + 1];
    const std::int64_t width = p.value_heads * p.value_dim;
    const Value* value = static_cast<const Value*>(p.qkv) + step.row * (2 * keys + width) +
                         2 * keys + head * p.value_dim + first;
    Value* out = static_cast<Value*>(p.out) + step.row * width + head * p.value_dim + first;
    const float* from = copy(step.from);
    float* to = copy(step.to);
    VF sums[kGroup] = {};
    for (std::int64_t k = 0; k < p.key_dim; ++k) {
      const VF each = splat(key[k]);
#pragma GCC unroll 4
      for (int g = 0; g < kGroup; ++g) {
        sums[g] = fma(each, load(from + k * kColumns + g * kLanes), sums[g]);
      }
    }
    VF delta[kGroup];
#pragma GCC unroll 4
    for (int g = 0; g < kGroup; ++g) {
      const VF wanted = load_first(value + g * kLanes, count - g * kLanes);
      delta[g] = (wanted - decay * sums[g]) * beta;
      sums[g] = VF{};
    }
    for (std::int64_t k = 0; k < p.key_dim; ++k) {
      const VF each = splat(key[k]);
      const VF query = splat(q[k]);
#pragma GCC unroll 4
      for (int g = 0; g < kGroup; ++g) {
        const std::int64_t at = k * kColumns + g * kLanes;
        const VF next = fma(each, delta[g], decay * load(from + at));
        store(to + at, next);
        sums[g] = fma(query, next, sums[g]);
      }
    }
    for (int g = 0; g < kGroup; ++g) store_first(out + g * kLanes, sums[g], count - g * kLanes);
  }

  void run(const StatePath& path) const {
    load_state(path);
    for (std::int64_t i = 0; i < path.count; ++i) {
      take_in(path.steps[i]);
      if (i + 1 == path.certain) store_state(path);
    }
  }
};

template <class Value>
void run(const GatedDeltaParams& p, const StatePath* paths, std::int64_t num_paths,
         const DeltaScratch& scratch, int threads) {
  parallel_for(p.walk.rows, threads, [&](std::int64_t row, int) {
    prepare_row<Value>(p, row, scratch.rows + row * scratch.row_size);
  });
  const std::int64_t blocks = (p.value_dim + kColumns - 1) / kColumns;
  parallel_for(num_paths * p.value_heads * blocks, threads, [&](std::int64_t i, int thread) {
    const std::int64_t first = i % blocks * kColumns;
    const std::int64_t left = p.value_dim - first;
    const HeadColumns<Value> columns{p,
                                     scratch,
                                     scratch.copies + thread * scratch.copies_size,
                                     i / blocks % p.value_heads,
                                     first,
                                     left < kColumns ? left : kColumns};
    columns.run(paths[i / blocks / p.value_heads]);
  });
}

}  // namespace

void gated_delta_kernel(const GatedDeltaParams& params, const StatePath* paths,
                        std::int64_t num_paths, const DeltaScratch& scratch, int threads) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, paths, num_paths, scratch, threads);
    case DType::bf16: return run<bf16>(params, paths, num_paths, scratch, threads);
    case DType::f16: return run<f16>(params, paths, num_paths, scratch, threads);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
