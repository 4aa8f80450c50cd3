// Attention in bfloat16 with the processor's dot product of pairs (AVX512_BF16) for the scores:
// twice the multiply-adds of an instruction, of queries and keys as they are.
#include "attention_kernel.hpp"
#include "attention_unit.hpp"
#include "dot_block.hpp"
#include "key_pairs.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Cached>
struct DotKeys : KeyPairs<Cached> {
  static void multiply(std::int64_t heads, std::int64_t columns, std::int64_t dim, float scale,
                       const float* queries, std::int64_t wide, const float* keys, float* scores,
                       RowsAhead& ahead) {
    switch (columns / kLanes) {
      case 1: multiply<1>(heads, dim, queries, wide, keys, scores, ahead); break;
      case 2: multiply<2>(heads, dim, queries, wide, keys, scores, ahead); break;
      case 3: multiply<3>(heads, dim, queries, wide, keys, scores, ahead); break;
      default: multiply<4>(heads, dim, queries, wide, keys, scores, ahead);
    }
    KeyPairs<Cached>::scale_scores(heads, columns, scale, scores);
  }

 private:
  template <int Registers>
  static void multiply(std::int64_t heads, std::int64_t dim, const float* queries,
                       std::int64_t wide, const float* keys, float* scores, RowsAhead& ahead) {
    const bf16* q = reinterpret_cast<const bf16*>(queries);
    const bf16* k = reinterpret_cast<const bf16*>(keys);
    for_row_blocks(heads, [&](auto count, std::int64_t first) {
      dot_rows<decltype(count)::value, StoredPairs<Registers>>(
          dim, q + first * 2 * wide, 2 * wide, k, scores + first * kPanel, true, ahead);
    });
  }
};

}  // namespace

void attention_dot(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                   int threads) {
  const auto all = [&](auto cached) {
    using Cached = decltype(cached);
    run_units<bf16, Cached, DotKeys<Cached>>(params, rows, units, num_units, layout, parts, scratch,
                                             threads);
  };
  if (params.k_scale != nullptr) return all(std::int8_t{});
  all(bf16{});
}

}  // namespace trtspec::TRTSPEC_ISA_NS
