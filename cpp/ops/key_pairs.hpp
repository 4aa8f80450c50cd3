// Queries and keys as pairs of bfloat16, for the kernels that multiply them so. Only for sources
// compiled for it.
#pragma once
#include <trtspec/linear.hpp>

#include "attention_kernel.hpp"
#include "rows_ahead.hpp"
#include "transpose.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

static_assert(kKeyTile == kPanel, "a tile of keys is multiplied as a panel of weights");

// What travelled as one element of 32 bits, as rows of pairs; returns what is behind them.
TRTSPEC_INLINE float* store_pairs(VU pairs, bf16, float* to) {
  store(to, (VF)pairs);
  return to + kKeyTile;
}

// Of 8 bits, which a bfloat16 has exactly: the upper halves of floats.
TRTSPEC_INLINE float* store_pairs(VU four, std::int8_t, float* to) {
  const auto element = [&](int i) {
    return (VU) __builtin_convertvector((VI)(four << (24 - 8 * i)) >> 24, VF);
  };
  for (int pair = 0; pair < 2; ++pair, to += kKeyTile) {
    store(to, (VF)(element(2 * pair) >> 16 | (element(2 * pair + 1) & 0xffff0000u)));
  }
  return to;
}

// keys[d / 2][i]: elements d and d + 1 of the tile's i-th key. A score is one chain over the pairs,
// scaled at its end. Cached: bfloat16, or 8 bits without their scales. Of heads in multiples of 64
// bytes.
template <class Cached>
struct KeyPairs {
  static void load_query(const bf16* q, std::int64_t dim, float, float* to) {
    __builtin_memcpy(to, q, std::size_t(dim) * sizeof(bf16));
  }

  static void load_keys(const Cached* const* rows, std::int64_t dim, float* keys,
                        RowsAhead& ahead) {
    for (std::int64_t d = 0; d < dim; d += 4 * kLanes / std::int64_t(sizeof(Cached))) {
      VU square[kLanes];
      load_square(rows, d, square);
      for (int i = 0; i < kLanes; ++i) ahead.step();
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) keys = store_pairs(square[i], Cached{}, keys);
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
