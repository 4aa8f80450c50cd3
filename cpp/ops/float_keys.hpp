// Queries and keys as floats. Only for kernel sources.
#pragma once
#include "attention_kernel.hpp"
#include "gemm_block.hpp"
#include "rows_ahead.hpp"
#include "transpose.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// How queries meet the keys of a tile: as floats, keys_[d][i] element d of the tile's i-th key.
template <class Value, class Cached>
struct FloatKeys {
  static void load_query(const Value* q, std::int64_t dim, float scale, float* to) {
    std::int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(to + d, load(q + d) * scale);
    for (; d < dim; ++d) to[d] = to_float(q[d]) * scale;
  }

  // kLanes keys, of which those at null are zeros.
  static void load_keys(const Cached* const* rows, std::int64_t dim, float* keys,
                        RowsAhead& ahead) {
    transpose_rows(rows, dim, keys, kKeyTile, ahead);
  }

  // scores [heads][64] of queries [heads][wide] and the first `columns` keys.
  static void multiply(std::int64_t heads, std::int64_t columns, std::int64_t dim, float,
                       const float* queries, std::int64_t wide, const float* keys, float* scores,
                       RowsAhead& ahead) {
    gemm_block(heads, columns, dim, queries, wide, keys, kKeyTile, scores, kKeyTile, true, ahead);
  }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
