// The linear op with int8 weights and bfloat16 inputs, with the processor's products of tiles
// (AMX): a byte is exact in bfloat16, so the weights are converted, never rounded.
#include "byte_pairs.hpp"
#include "linear_int8_step.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"
#include "tiles.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

void multiply_panel(const LinearInt8Params& params, std::int64_t panel, std::int64_t next,
                    const TileInputs& inputs, std::int64_t rows, float* sums) {
  alignas(64) bf16 weights[kInt8Step * kPanel];
  alignas(64) float part[kTileBlock * kPanel];
  Tiles tiles;
  // A step of the loop that pairs weights reads two rows of them.
  for_steps<2>(params, panel, next, 1, [&](std::int64_t k, std::int64_t n, const std::int8_t* w,
                                           const float* scales, auto& ahead) {
    for (std::int64_t i = 0; i < n; i += 2, w += 2 * kPanel) {
      ahead.step();
      for (int c = 0; c < kPanel; c += 16) {
        _mm512_store_si512(weights + i * kPanel + 2 * c, byte_pairs(w + c));
      }
    }
    for_tile_blocks(rows, tiles, [&](std::int64_t first, std::int64_t count) {
      for_groups(params, scales, k, n, count, part, sums + first * kPanel,
                 [&](std::int64_t offset, std::int64_t depth, float* to, bool fresh) {
                   multiply_tiles(count, depth, inputs.from(first, k + offset),
                                  weights + offset * kPanel, to, fresh, [] {});
                 });
    });
  });
}

}  // namespace

void linear_int8_amx(const LinearInt8Params& params) {
  const TileInputs inputs = inputs_of(params.linear);
  run_panels<bf16>(params.linear, 1, [&](std::int64_t panel, std::int64_t next, std::int64_t first,
                                         std::int64_t rows, float* sums) {
    multiply_panel(params, panel, next, inputs.from(first, 0), rows, sums);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
