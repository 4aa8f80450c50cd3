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
  const bf16* packed = static_cast<const bf16*>(params.packed);
  const bf16* w = packed + panel * depth * kPanel;
  LinesAhead ahead(w, depth * kPanel * std::int64_t{sizeof(bf16)}, packed + next * depth * kPanel);
  // Prefetches that come in a burst would wait for each other.
  constexpr std::int64_t kLines = kInputsWeights * sizeof(bf16) / 64 / kTileSteps;
  const std::int64_t share = (kLines + blocks - 1) / blocks;
  Tiles tiles;
  for (std::int64_t k = 0; k == 0 || k < depth; k += step) {
    const std::int64_t n = depth - k < step ? depth - k : step;
    for_tile_blocks(rows, tiles, [&](std::int64_t first, std::int64_t) {
      multiply_tiles(n, x + first * depth + k, depth, w + k * kPanel, sums + first * kPanel, k == 0,
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
