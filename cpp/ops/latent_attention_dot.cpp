// Attention to latents in bfloat16 with the processor's dot product of pairs (AVX512_BF16) for the
// scores, of queries and tokens as they are.
#include "dot_block.hpp"
#include "latent_attention_kernel.hpp"
#include "latent_attention_unit.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

static_assert(kLatentTile == kPanel, "a tile of tokens is multiplied as a panel of weights");

// keys[d / 2][i]: elements d and d + 1 of the tile's i-th token. A score is one chain over the
// pairs, scaled at its end.
struct LatentPairs {
  static void load_query(const bf16* q, std::int64_t dim, float, std::int64_t at, float* to) {
    __builtin_memcpy(reinterpret_cast<bf16*>(to) + at, q, std::size_t(dim) * sizeof(bf16));
  }

  static void load_keys(const bf16* const* tokens, std::int64_t dim, std::int64_t at, float* keys,
                        RowsAhead& ahead) {
    keys += at / 2 * kLatentTile;
    for (std::int64_t d = 0; d < dim; d += 2 * kLanes, keys += kLanes * kLatentTile) {
      VU square[kLanes];
      load_square(tokens, d, square);
      for (int i = 0; i < kLanes; ++i) ahead.step();
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(keys + i * kLatentTile, (VF)square[i]);
    }
  }

  static void multiply(std::int64_t heads, std::int64_t columns, std::int64_t depth, float scale,
                       const float* queries, std::int64_t stride, const float* keys, float* scores,
                       RowsAhead& ahead) {
    switch (columns / kLanes) {
      case 1: multiply<1>(heads, depth, queries, stride, keys, scores, ahead); break;
      case 2: multiply<2>(heads, depth, queries, stride, keys, scores, ahead); break;
      case 3: multiply<3>(heads, depth, queries, stride, keys, scores, ahead); break;
      default: multiply<4>(heads, depth, queries, stride, keys, scores, ahead);
    }
    for (std::int64_t i = 0; i < heads; ++i, scores += kPanel) {
      for (std::int64_t c = 0; c < columns; c += kLanes) {
        store(scores + c, load(scores + c) * scale);
      }
    }
  }

 private:
  template <int Registers>
  static void multiply(std::int64_t heads, std::int64_t depth, const float* queries,
                       std::int64_t stride, const float* keys, float* scores, RowsAhead& ahead) {
    const bf16* q = reinterpret_cast<const bf16*>(queries);
    const bf16* k = reinterpret_cast<const bf16*>(keys);
    for_row_blocks(heads, [&](auto count, std::int64_t first) {
      dot_rows<decltype(count)::value, StoredPairs<Registers>>(
          depth, q + first * 2 * stride, 2 * stride, k, scores + first * kPanel, true, ahead);
    });
  }
};

}  // namespace

void latent_attention_dot(const LatentAttentionParams& params, const LatentUnit* units,
                          std::int64_t num_units, const LatentScratch& layout, float* scratch,
                          int threads) {
  run_latent_units<bf16, bf16, LatentPairs>(params, units, num_units, layout, scratch, threads);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
