// Attention in bfloat16 with the processor's products of tiles (AMX) for the scores.
#include "attention_kernel.hpp"
#include "attention_unit.hpp"
#include "key_pairs.hpp"
#include "tiles.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Cached>
class TileKeys : public KeyPairs<Cached> {
 public:
  void multiply(std::int64_t heads, std::int64_t columns, std::int64_t dim, float scale,
                const float* queries, std::int64_t wide, const float* keys, float* scores,
                RowsAhead& ahead) {
    const TileInputs inputs{reinterpret_cast<const bf16*>(queries), 2 * wide, kTileInputs};
    for_tile_blocks(heads, tiles_, [&](std::int64_t first, std::int64_t count) {
      multiply_tiles(count, dim, inputs.from(first, 0), reinterpret_cast<const bf16*>(keys),
                     scores + first * kPanel, true, [&] { ahead.step(); });
    });
    KeyPairs<Cached>::scale_scores(heads, columns, scale, scores);
  }

 private:
  Tiles tiles_;
};

}  // namespace

void attention_amx(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                   int threads) {
  const auto all = [&](auto cached) {
    using Cached = decltype(cached);
    run_units<bf16, Cached, TileKeys<Cached>>(params, rows, units, num_units, layout, parts,
                                              scratch, threads);
  };
  if (params.k_scale != nullptr) return all(std::int8_t{});
  all(bf16{});
}

}  // namespace trtspec::TRTSPEC_ISA_NS
