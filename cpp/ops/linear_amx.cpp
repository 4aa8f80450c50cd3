// The linear op in bfloat16 with the processor's products of tiles (AMX): up to 16 rows take the
// time of one, which is that of reading the weights.
#include "linear_kernel.hpp"
#include "linear_panels.hpp"
#include "tiles.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

// Inputs of a step: a few, so that memory and products take turns often; many where products take
// the time, and sums should rarely leave their tiles.
constexpr std::int64_t kShortStep = 2 * kTileInputs, kLongStep = 8 * kTileInputs;
constexpr std::int64_t kFewBlocks = 2;

void multiply_panel(const LinearParams& params, std::int64_t panel, std::int64_t next,
                    const bf16* x, std::int64_t rows, float* sums) {
  const std::int64_t depth = params.in_features;
  const std::int64_t blocks = tile_blocks(rows);
  const std::int64_t step = blocks > kFewBlocks ? kLongStep : kShortStep;
  const bf16* w = static_cast<const bf16*>(params.packed) + panel * depth * kPanel;
  const bf16* later = static_cast<const bf16*>(params.packed) + next * depth * kPanel;
  // Half of what comes next is fetched while weights are paired, half during the products.
  LinesAhead ahead(w, depth * kPanel * std::int64_t{sizeof(bf16)}, later);
  constexpr std::int64_t kHalf = kInputsWeights * sizeof(bf16) / 64 / 2;
  const std::int64_t share = (kHalf / 4 + blocks - 1) / blocks;
  alignas(64) bf16 weights[kLongStep * kPanel];
  Tiles tiles;
  for (std::int64_t k = 0; k == 0 || k < depth; k += step) {
    const std::int64_t n = depth - k < step ? depth - k : step;
    for (std::int64_t i = 0; i < n; i += 2, w += 2 * kPanel) {
      ahead.fetch(2 * kHalf / kTileInputs);
      store_pairs(w, place_of(i, weights));
    }
    for_tile_blocks(rows, tiles, [&](std::int64_t first, std::int64_t) {
      multiply_tiles(n, x + first * depth + k, depth, weights, sums + first * kPanel, k == 0,
                     [&] { ahead.fetch(share); });
    });
  }
}

}  // namespace

void linear_amx(const LinearParams& params) {
  run_bf16_panels(params, sizeof(bf16), [&](std::int64_t panel, std::int64_t next, const bf16* x,
                                            std::int64_t rows, float* sums) {
    multiply_panel(params, panel, next, x, rows, sums);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
