#include "mamba2_kernel.hpp"

#include "parallel.hpp"
#include "sampling_math.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr int kVectors = 4;  // of columns whose sums are taken together

// Some columns of a head's state [state_size, columns], and what lies between its rows.
struct Part {
  float* data;
  std::int64_t stride;

  Part from(std::int64_t column) const { return {data + column, stride}; }
};

// What a row has for all columns of a head.
struct HeadRow {
  float decay;
  float dt;
  float skip;
  const float* b;
  const float* c;
};

TRTSPEC_INLINE VF silu(VF z) { return z / (1.0f + exp(-z)); }

// The state `to` of a row behind `from`, unless nobody reads it, and the row's output, of so many
// vectors of columns; a single one may have fewer than all of its `columns`.
template <int Vectors, bool kStores, class Value>
TRTSPEC_INLINE void step_columns(std::int64_t size, const HeadRow& row, Part from, Part to,
                                 std::int64_t columns, const Value* x, const Value* gate,
                                 Value* out) {
  const auto count = [&](int v) { return Vectors == 1 ? columns : kLanes * (v + 1); };
  VF own[Vectors], fed[Vectors], sums[Vectors] = {};
  for (int v = 0; v < Vectors; ++v) {
    own[v] = load_first(x + v * kLanes, count(v));
    fed[v] = row.dt * own[v];
  }
  for (std::int64_t n = 0; n < size; ++n) {
    const VF b = splat(row.b[n]), c = splat(row.c[n]);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const VF before = load_first(from.data + n * from.stride + v * kLanes, count(v));
      const VF state = fma(b, fed[v], row.decay * before);
      sums[v] = fma(c, state, sums[v]);
      if (kStores) store_first(to.data + n * to.stride + v * kLanes, state, count(v));
    }
  }
  for (int v = 0; v < Vectors; ++v) {
    const VF y = fma(splat(row.skip), own[v], sums[v]);
    store_first(out + v * kLanes, y * silu(load_first(gate + v * kLanes, count(v))), count(v));
  }
}

template <bool kStores, class Value>
void step(std::int64_t size, const HeadRow& row, Part from, Part to, std::int64_t columns,
          const Value* x, const Value* gate, Value* out) {
  std::int64_t k = 0;
  for (; k + kVectors * kLanes <= columns; k += kVectors * kLanes) {
    step_columns<kVectors, kStores>(size, row, from.from(k), to.from(k), columns - k, x + k,
                                    gate + k, out + k);
  }
  for (; k < columns; k += kLanes) {
    step_columns<1, kStores>(size, row, from.from(k), to.from(k), columns - k, x + k, gate + k,
                             out + k);
  }
}

// A block of columns of a head, along the path of a request.
template <class Value>
struct Block {
  const Mamba2Params& p;
  std::int64_t head;
  std::int64_t first;
  std::int64_t columns;
  float* b;
  float* c;
  float* copies;

  Part copy(std::int64_t index) const {
    return {copies + index * p.state_size * kStateColumns, kStateColumns};
  }

  Part in_slot(std::int64_t slot) const {
    const std::int64_t of_head = p.state_size * p.head_dim;
    return {p.state + (slot * p.heads + head) * of_head + first, p.head_dim};
  }

  void fill(Part to, const Part* from) const {
    for (std::int64_t n = 0; n < p.state_size; ++n) {
      for (std::int64_t k = 0; k < columns; ++k) {
        to.data[n * to.stride + k] = from == nullptr ? 0 : from->data[n * from->stride + k];
      }
    }
  }

  // softplus(dt + its bias), cut to the limits; like the decay in float64, whose functions are the
  // same on every instruction set.
  float time_step(Value given) const {
    const double x = to_float(given) + p.dt_bias[head];
    const double small = math::log_of(1.0 + math::exp_of(x < 0 ? x : -x));
    const float dt = float(x < 0 ? small : x + small);
    return dt < p.dt_min ? p.dt_min : dt > p.dt_max ? p.dt_max : dt;
  }

  template <bool kStores>
  void take(std::int64_t t, Part from, Part to) const {
    const std::int64_t inner = p.heads * p.head_dim, size = p.state_size;
    const Value* x = static_cast<const Value*>(p.xbc) + t * (inner + 2 * p.groups * size);
    const Value* own_b = x + inner + head / (p.heads / p.groups) * size;
    for (std::int64_t n = 0; n < size; ++n) b[n] = to_float(own_b[n]);
    for (std::int64_t n = 0; n < size; ++n) c[n] = to_float(own_b[p.groups * size + n]);
    const float dt = time_step(static_cast<const Value*>(p.dt)[t * p.dt_row_stride + head]);
    const double a = -math::exp_of(double(p.a_log[head]));
    const HeadRow row{float(math::exp_of(dt * a)), dt, p.skip[head], b, c};
    const std::int64_t at = head * p.head_dim + first;
    step<kStores>(size, row, from, to, columns, x + at,
                  static_cast<const Value*>(p.gate) + t * p.gate_row_stride + at,
                  static_cast<Value*>(p.out) + t * inner + at);
  }

  // The certain steps in the slot itself, from a copy of it the others.
  void walk(const StatePath& path) const {
    const Part slot = in_slot(path.slot);
    if (path.is_new) fill(slot, nullptr);
    for (std::int64_t i = 0; i < path.certain; ++i) take<true>(path.steps[i].row, slot, slot);
    if (path.certain < path.count) fill(copy(0), &slot);
    for (std::int64_t i = path.certain; i < path.count; ++i) {
      const StateStep& step = path.steps[i];
      const bool is_read = i + 1 < path.count && path.steps[i + 1].from == step.to;
      const Part from = copy(step.from), to = copy(step.to);
      is_read ? take<true>(step.row, from, to) : take<false>(step.row, from, to);
    }
  }
};

template <class Value>
void run(const Mamba2Params& p, const StatePath* paths, std::int64_t num_paths, std::int64_t copies,
         float* scratch, int threads) {
  const std::int64_t blocks = column_blocks(p.head_dim);
  const std::int64_t of_path = p.heads * blocks;
  parallel_for(num_paths * of_path, threads, [&](std::int64_t i, int thread) {
    const std::int64_t first = i % blocks * kStateColumns;
    const std::int64_t left = p.head_dim - first;
    float* own = scratch + thread * mamba2_scratch(p.state_size, copies);
    const Block<Value> block{
        .p = p,
        .head = i % of_path / blocks,
        .first = first,
        .columns = left < kStateColumns ? left : kStateColumns,
        .b = own,
        .c = own + p.state_size,
        .copies = own + 2 * p.state_size,
    };
    block.walk(paths[i / of_path]);
  });
}

}  // namespace

void mamba2_kernel(const Mamba2Params& params, const StatePath* paths, std::int64_t num_paths,
                   std::int64_t copies, float* scratch, int threads) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, paths, num_paths, copies, scratch, threads);
    case DType::bf16: return run<bf16>(params, paths, num_paths, copies, scratch, threads);
    case DType::f16: return run<f16>(params, paths, num_paths, copies, scratch, threads);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
