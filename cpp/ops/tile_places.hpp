// Where the rows of a tile of keys lie in a cache. Only for kernel sources.
#pragma once
#include "attention_kernel.hpp"
#include "bit_runs.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// rows: addresses, null where the block table has no block. slots: where a row of 8 bits has its
// scales.
template <class Cached>
struct TilePlaces {
  static constexpr bool kHasSlots = sizeof(Cached) == 1;

  const Cached* rows[kKeyTile];
  std::int64_t slots[kHasSlots ? kKeyTile : 1];

  // Finds those of the unit's positions from `tile` on in `cache`, which begins with the unit's
  // first kv head; returns how many there are.
  std::int64_t find(const AttentionParams& params, const AttentionUnit& unit, const Cached* cache,
                    std::int64_t tile) {
    const std::int64_t count = least(unit.end - tile, kKeyTile);
    const std::int64_t row_size = params.kv_heads * params.head_dim;
    const std::int32_t* table = params.block_tables + unit.request * params.table_width;
    std::int64_t block = tile / params.block_size;
    std::int64_t offset = tile % params.block_size;
    for (std::int64_t i = 0; i < count; ++block, offset = 0) {
      const std::int64_t end = least(i + params.block_size - offset, count);
      const bool exists = table[block] >= 0 && table[block] < params.num_blocks;
      std::int64_t slot = exists ? table[block] * params.block_size + offset : 0;
      const Cached* row = exists ? cache + slot * row_size : nullptr;
      const std::int64_t stride = exists ? row_size : 0;
      for (; i < end; ++i, row += stride, ++slot) {
        rows[i] = row;
        if constexpr (kHasSlots) slots[i] = slot;
      }
    }
    return count;
  }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
