// Attention in bfloat16 with the processor's dot product of pairs (AVX512_BF16) for the scores:
// twice the multiply-adds of an instruction, of queries and keys as they are.
#include "attention_kernel.hpp"
#include "attention_unit.hpp"
#include "dot_block.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

static_assert(kKeyTile == kPanel, "a tile of keys is multiplied as a panel of weights");

// keys[d / 2][i]: elements d and d + 1 of the tile's i-th key. A score is one chain over the pairs,
// scaled at its end. Of heads in multiples of 32 elements.
struct DotKeys {
  static void load_query(const bf16* q, std::int64_t dim, float, float* to) {
    __builtin_memcpy(to, q, std::size_t(dim) * sizeof(bf16));
  }

  static void load_keys(const bf16* const* rows, std::int64_t dim, float* keys,
                        RowsAhead& ahead) {
    for (std::int64_t d = 0; d < dim; d += 2 * kLanes, keys += kLanes * kKeyTile) {
      VU square[kLanes];
      load_square(rows, d, square);
      for (int i = 0; i < kLanes; ++i) ahead.step();
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(keys + i * kKeyTile, (VF)square[i]);
    }
  }

  static void multiply(std::int64_t heads, std::int64_t columns, std::int64_t dim, float scale,
                       const float* queries, std::int64_t wide, const float* keys, float* scores,
                       RowsAhead& ahead) {
    switch (columns / kLanes) {
      case 1: return multiply<1>(heads, dim, scale, queries, wide, keys, scores, ahead);
      case 2: return multiply<2>(heads, dim, scale, queries, wide, keys, scores, ahead);
      case 3: return multiply<3>(heads, dim, scale, queries, wide, keys, scores, ahead);
      default: return multiply<4>(heads, dim, scale, queries, wide, keys, scores, ahead);
    }
  }

 private:
  template <int Registers>
  static void multiply(std::int64_t heads, std::int64_t dim, float scale, const float* queries,
                       std::int64_t wide, const float* keys, float* scores, RowsAhead& ahead) {
    const bf16* q = reinterpret_cast<const bf16*>(queries);
    const bf16* k = reinterpret_cast<const bf16*>(keys);
    for_row_blocks(heads, [&](auto count, std::int64_t first) {
      dot_rows<decltype(count)::value, StoredPairs<Registers>>(
          dim, q + first * 2 * wide, 2 * wide, k, scores + first * kPanel, true, ahead);
    });
    for (std::int64_t i = 0; i < heads; ++i, scores += kPanel) {
#pragma GCC unroll 4
      for (int r = 0; r < Registers; ++r) {
        store(scores + r * kLanes, load(scores + r * kLanes) * scale);
      }
    }
  }
};

}  // namespace

void attention_dot(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, float* scratch, int threads) {
  run_units<bf16, DotKeys>(params, rows, units, num_units, layout, scratch, threads);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
