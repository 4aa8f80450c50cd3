// Attention with arithmetic in floats, of any dtype; see attention_unit.hpp.
#include "attention_kernel.hpp"

#include "attention_unit.hpp"
#include "float_keys.hpp"
#include "quantise_row.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void run(const AttentionParams& params, const AttentionRow* rows, const AttentionUnit* units,
         std::int64_t num_units, const AttentionScratch& layout, const AttentionParts& parts,
         float* scratch, int threads) {
  const auto all = [&](auto cached) {
    using Cached = decltype(cached);
    run_units<Value, Cached, FloatKeys<Value, Cached>>(params, rows, units, num_units, layout,
                                                       parts, scratch, threads);
  };
  if (params.k_scale != nullptr) return all(std::int8_t{});
  all(Value{});
}

template <class Value>
void join_rows(const AttentionParams& params, const AttentionParts& parts,
               const SharedRows& shared) {
  const std::int64_t group = params.heads / params.kv_heads, dim = params.head_dim;
  const std::int64_t wide = padded_dim(dim), count = shared.kv_heads * shared.rows * group;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = shared.first_part + i;
    AttentionPart joined = parts.parts[first];
    float* const result = parts.sums + first * wide;  // of the first piece, and then of all
    for (std::int64_t piece = 1; piece < shared.pieces; ++piece) {
      const std::int64_t part = first + piece * count;
      if (parts.parts[part].total == 0) continue;
      join(parts.parts[part], parts.sums + part * wide, wide, joined, result);
    }
    if (joined.total == 0) joined = no_keys(result, wide);
    const std::int64_t kv_head = shared.first_kv_head + i / (shared.rows * group);
    const std::int64_t head = kv_head * group + i % group;
    const std::int64_t row = shared.first_row + i / group % shared.rows;
    if (params.sinks != nullptr) add_sink(params.sinks[head], wide, joined, result);
    store_result(result, joined.total, dim,
                 static_cast<Value*>(params.out) + (row * params.heads + head) * dim);
  }
}

}  // namespace

void attention_kernel(const AttentionParams& params, const AttentionRow* rows,
                      const AttentionUnit* units, std::int64_t num_units,
                      const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                      int threads) {
  switch (params.dtype) {
    case DType::f32:
      return run<float>(params, rows, units, num_units, layout, parts, scratch, threads);
    case DType::bf16:
      return run<bf16>(params, rows, units, num_units, layout, parts, scratch, threads);
    case DType::f16:
      return run<f16>(params, rows, units, num_units, layout, parts, scratch, threads);
  }
}

void attention_write_kernel(const AttentionParams& p, int threads) {
  const auto write = [&](auto value) {
    using Value = decltype(value);
    const auto heads = [&](const void* rows, std::int64_t stride, std::int64_t t, void* cache,
                           float* scales) {
      const Value* from = static_cast<const Value*>(rows) + t * stride;
      for (std::int64_t h = 0; h < p.kv_heads; ++h, from += p.head_dim) {
        const std::int64_t at = p.slot_mapping[t] * p.kv_heads + h;
        scales[at] =
            quantise_row(from, p.head_dim, static_cast<std::int8_t*>(cache) + at * p.head_dim);
      }
    };
    parallel_for(p.rows, threads, [&](std::int64_t t, int) {
      if (p.slot_mapping[t] < 0) return;
      heads(p.k, p.k_stride, t, p.k_cache, p.k_scale);
      heads(p.v, p.v_stride, t, p.v_cache, p.v_scale);
    });
  };
  switch (p.dtype) {
    case DType::f32: return write(float{});
    case DType::bf16: return write(bf16{});
    case DType::f16: return write(f16{});
  }
}

void attention_join_kernel(const AttentionParams& params, const AttentionParts& parts) {
  for (std::int64_t i = 0; i < parts.count; ++i) {
    switch (params.dtype) {
      case DType::f32: join_rows<float>(params, parts, parts.shared[i]); break;
      case DType::bf16: join_rows<bf16>(params, parts, parts.shared[i]); break;
      case DType::f16: join_rows<f16>(params, parts, parts.shared[i]); break;
    }
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
