// Attention with arithmetic in floats, of any dtype; see attention_unit.hpp.
#include "attention_kernel.hpp"

#include "attention_unit.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void run(const AttentionParams& params, const AttentionRow* rows, const AttentionUnit* units,
         std::int64_t num_units, const AttentionScratch& layout, const AttentionParts& parts,
         float* scratch, int threads) {
  run_units<Value, FloatKeys<Value>>(params, rows, units, num_units, layout, parts, scratch,
                                     threads);
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
                      const AttentionScratch& layout, const AttentionParts& parts,
                      float* scratch, int threads) {
  switch (params.dtype) {
    case DType::f32:
      return run<float>(params, rows, units, num_units, layout, parts, scratch, threads);
    case DType::bf16:
      return run<bf16>(params, rows, units, num_units, layout, parts, scratch, threads);
    case DType::f16:
      return run<f16>(params, rows, units, num_units, layout, parts, scratch, threads);
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
