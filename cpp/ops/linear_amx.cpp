// The linear op in bfloat16 with the processor's products of tiles (AMX): up to 16 rows take the
// time of one, which is that of reading the weights.
#include "linear_kernel.hpp"
#include "linear_panels.hpp"
#include "tiles.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr std::int64_t kPageBytes = 4096;

// Prefetches the weights of a panel `distance` bytes before they are read; behind its `size` bytes
// those at `later`. The lines of `pages` pages are interleaved: a processor's own prefetching follows
// accesses in rising order within a page, and so reads several pages at once.
class LinesAhead {
 public:
  LinesAhead(const bf16* first, std::int64_t size, const bf16* later, std::int64_t distance,
             std::int64_t pages)
      : next_(reinterpret_cast<const char*>(first) + distance),
        later_(reinterpret_cast<const char*>(later)),
        left_(size - distance),
        pages_(pages) {}

  TRTSPEC_INLINE void fetch(std::int64_t lines) {
    for (std::int64_t i = 0; i < lines; ++i) {
      __builtin_prefetch((left_ > 0 ? next_ : later_ - left_) + page_ * kPageBytes + line_, 0, 2);
      if (++page_ < pages_) continue;
      page_ = 0;
      line_ += 64;
      if (line_ < kPageBytes) continue;
      line_ = 0;
      next_ += pages_ * kPageBytes;
      left_ -= pages_ * kPageBytes;
    }
  }

 private:
  const char* next_;
  const char* later_;
  std::int64_t left_;
  const std::int64_t pages_;
  std::int64_t page_ = 0;
  std::int64_t line_ = 0;
};

// How memory and products are interleaved, by the rows: where memory takes the time, in steps of few
// inputs; where products do, in longer ones, in which sums leave their tiles less often, and with
// weights that come from further ahead.
struct Pace {
  std::int64_t inputs;    // of a step
  std::int64_t distance;  // of prefetches, in bytes
  std::int64_t pages;     // that they are interleaved from
};

constexpr Pace pace_of(std::int64_t rows) {
  if (rows <= kTileRows) return {2 * kTileInputs, 2 * kPageBytes, 1};
  if (rows <= kTileBlock) return {2 * kTileInputs, 4 * kPageBytes, 4};
  return {4 * kTileInputs, 8 * kPageBytes, 4};
}

void multiply_panel(const LinearParams& params, std::int64_t panel, std::int64_t next,
                    const TileInputs& inputs, std::int64_t rows, float* sums) {
  const std::int64_t depth = params.in_features;
  const Pace pace = pace_of(rows);
  const bf16* packed = static_cast<const bf16*>(params.packed);
  const bf16* w = packed + panel * depth * kPanel;
  LinesAhead ahead(w, depth * kPanel * std::int64_t{sizeof(bf16)}, packed + next * depth * kPanel,
                   pace.distance, pace.pages);
  // Prefetches that come in a burst would wait for each other.
  constexpr std::int64_t kLines = kInputsWeights * sizeof(bf16) / 64 / kTileSteps;
  const std::int64_t share = (kLines + tile_blocks(rows) - 1) / tile_blocks(rows);
  Tiles tiles;
  for (std::int64_t k = 0; k == 0 || k < depth; k += pace.inputs) {
    const std::int64_t n = depth - k < pace.inputs ? depth - k : pace.inputs;
    for_tile_blocks(rows, tiles, [&](std::int64_t first, std::int64_t count) {
      multiply_tiles(count, n, inputs.from(first, k), w + k * kPanel, sums + first * kPanel, k == 0,
                     [&] { ahead.fetch(share); });
    });
  }
}

}  // namespace

void linear_amx(const LinearParams& params) {
  const TileInputs inputs = inputs_of(params);
  run_panels<bf16>(params, [&](std::int64_t panel, std::int64_t next, std::int64_t first,
                               std::int64_t rows, float* sums) {
    multiply_panel(params, panel, next, inputs.from(first, 0), rows, sums);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
