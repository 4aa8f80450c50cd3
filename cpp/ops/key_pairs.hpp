// Queries and keys as pairs of bfloat16, for the kernels that multiply them so. Only for sources
// compiled for it.
#pragma once
#include <trtspec/linear.hpp>

#include "attention_kernel.hpp"
#include "rows_ahead.hpp"
#include "transpose.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

static_assert(kKeyTile == kPanel, "a tile of keys is multiplied as a panel of weights");

// keys[d / 2][i]: elements d and d + 1 of the tile's i-th key. A score is one chain over the pairs,
// scaled at its end. Of heads in multiples of 32 elements.
struct KeyPairs {
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

 protected:
  static void scale_scores(std::int64_t heads, std::int64_t columns, float scale, float* scores) {
    for (std::int64_t i = 0; i < heads; ++i, scores += kPanel) {
      for (std::int64_t c = 0; c < columns; c += kLanes) {
        store(scores + c, load(scores + c) * scale);
      }
    }
  }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
