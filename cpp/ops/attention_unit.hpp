// For a unit (some rows of a request, some kv heads) three passes: scores of all visible keys,
// softmax, weighted sum of values. Keys are looked at in tiles of 64 cache positions, read and
// converted once for all (row, head)s of the unit; a row's visible keys of a tile are the bits of
// one word.
//
// Why no bit of a row depends on the rest: a score is one chain of multiply-adds over head_dim. Of a
// piece of the row's keys, at its positions [256 i, 256 i + 256), whichever places of the cache they
// have: the maximum is exact; a key's weight is added to lane rank % 16 of the sum; an output element
// is one chain of multiply-adds over the keys. Pieces are joined one after the other. Tile borders
// only say where a chain rests, and units where others go on.
//
// Only for kernel sources.
#pragma once
#include "attention_kernel.hpp"
#include "attention_pieces.hpp"
#include "bit_runs.hpp"
#include "gemm_block.hpp"
#include "parallel.hpp"
#include "rows_ahead.hpp"
#include "tile_places.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// One (row, head) after the other, what is kept of it is at index
// (kv head of the unit * rows + row) * group + head of the group.
// Cached: what the caches hold, Value, or 8 bits times the scale of a token's head. A key's scale
// multiplies its scores, a value's the weights.
template <class Value, class Cached, class Keys>
class Unit {
  static constexpr bool kIsScaled = sizeof(Cached) == 1;

 public:
  // `later`: the unit that the thread is likely to take next, if any.
  Unit(const AttentionParams& params, const AttentionRow* rows, const AttentionUnit& unit,
       const AttentionUnit* later, const AttentionScratch& layout, const AttentionParts& parts,
       float* scratch)
      : params_(params),
        unit_(unit),
        later_(later),
        rows_(rows + unit.first_view),
        parts_(parts),
        group_(params.heads / params.kv_heads),
        heads_(unit.rows * group_),
        dim_(params.head_dim),
        wide_(padded_dim(params.head_dim)),
        row_size_(params.kv_heads * params.head_dim),
        score_stride_(layout.score_stride),
        queries_(scratch + layout.queries),
        keys_(scratch + layout.keys),
        values_(scratch + layout.values),
        tile_scores_(scratch + layout.tile_scores),
        sums_(scratch + layout.sums),
        results_(scratch + layout.results),
        scores_(scratch + layout.scores) {}

  void run() {
    load_queries();
    const std::int64_t first = first_tile(unit_);
    begin_pass(params_.k_cache);
    following_->find(params_, unit_, cache_, first);
    for (std::int64_t tile = first; tile < unit_.end; tile += kKeyTile) {
      enter_tile(tile);
      for (std::int64_t h = 0; h < unit_.kv_heads; ++h) {
        if (seen_ != 0) score_tile(h);
      }
      leave_tile();
    }
    for (std::int64_t i = 0; i < unit_.kv_heads * heads_; ++i) {
      const AttentionRow& row = rows_[i / group_ % unit_.rows];
      joined_[i].total = 0;
      if (row.keys == 0) joined_[i] = no_keys(results_ + i * wide_, wide_);
      if (params_.soft_cap > 0) {
        cap_scores(scores(i) + row.begin - unit_.begin, row.keys, params_.soft_cap);
      }
    }
    begin_pass(params_.v_cache);
    for (std::int64_t tile = first; tile < unit_.end; tile += kKeyTile) {
      enter_tile(tile);
      for (std::int64_t h = 0; h < unit_.kv_heads; ++h) {
        if (seen_ != 0) add_values(h);
      }
      leave_tile();
    }
    if (unit_.shared >= 0) return;
    for (std::int64_t i = 0; i < unit_.kv_heads * heads_; ++i) {
      if (params_.sinks != nullptr) {
        add_sink(params_.sinks[head_of(i)], wide_, joined_[i], results_ + i * wide_);
      }
      store_result(results_ + i * wide_, joined_[i].total, dim_,
                   static_cast<Value*>(params_.out) + head_offset(i, params_.heads * dim_));
    }
  }

 private:
  static std::int64_t first_tile(const AttentionUnit& unit) {
    return unit.begin / kKeyTile * kKeyTile;
  }

  float* scores(std::int64_t i) { return scores_ + i * score_stride_; }

  // Scores of a row are kept from index row.begin - unit.begin on, by rank. So rows that see the
  // same keys of a tile have them at the same index, also under a sliding window.
  std::int64_t first_score(std::int64_t r) const { return rows_[r].begin - unit_.begin; }

  // The query head of the i-th (row, head).
  std::int64_t head_of(std::int64_t i) const {
    return (unit_.first_kv_head + i / heads_) * group_ + i % group_;
  }

  // Element offset of the i-th (row, head) in a row-major [rows, heads, head_dim].
  std::int64_t head_offset(std::int64_t i, std::int64_t row_stride) const {
    const std::int64_t row = unit_.first_row + i / group_ % unit_.rows;
    return row * row_stride + head_of(i) * dim_;
  }

  void load_queries() {
    for (std::int64_t i = 0; i < unit_.kv_heads * heads_; ++i) {
      const Value* q = static_cast<const Value*>(params_.q) + head_offset(i, params_.q_stride);
      meet_.load_query(q, dim_, params_.scale, queries_ + i * wide_);
    }
  }

  // K or V, from a unit's first kv head on.
  const Cached* heads_of(const void* cache, const AttentionUnit& unit) const {
    return static_cast<const Cached*>(cache) + unit.first_kv_head * dim_;
  }

  void begin_pass(const void* cache) {
    is_keys_ = cache == params_.k_cache;
    cache_ = heads_of(cache, unit_);
    for (std::int64_t r = 0; r < unit_.rows; ++r) {
      next_[r] = rows_[r].keys == 0 ? 0 : first_score(r);
    }
  }

  // Finds who sees what of the tile of positions from `tile` on, and where its rows are.
  void enter_tile(std::int64_t tile) {
    seen_ = 0;
    for (std::int64_t r = 0; r < unit_.rows; ++r) {
      const AttentionRow& row = rows_[r];
      visible_[r] = bit_range(row.begin - tile, row.end - tile);
      if (row.mask != nullptr) {
        visible_[r] |= mask_bits(row.mask, params_.mask_words, tile - row.end);
      }
      seen_ |= visible_[r];
    }
    count_ = seen_ == 0 ? 0 : 64 - __builtin_clzll(seen_);
    TilePlaces<Cached>* const found = following_;
    following_ = places_;
    places_ = found;
    look_ahead(tile);
  }

  // What follows the tile comes from memory while it is computed: the next tile, or the first one
  // of the next pass, or of the next unit.
  void look_ahead(std::int64_t tile) {
    const AttentionUnit* unit = &unit_;
    const Cached* cache = cache_;
    std::int64_t next = tile + kKeyTile;
    if (next >= unit_.end) {
      if (!is_keys_ && later_ != nullptr) unit = later_;
      cache = heads_of(is_keys_ ? params_.v_cache : params_.k_cache, *unit);
      next = first_tile(*unit);
    }
    const std::int64_t count = following_->find(params_, *unit, cache, next);
    const auto* const row = reinterpret_cast<const char* const*>(following_->rows);
    const std::int64_t bytes = unit->kv_heads * dim_ * std::int64_t(sizeof(Cached));
    ahead_ = {row, row + (count > 0 ? count - 1 : 0), row[0], row[0] + bytes, bytes};
  }

  void leave_tile() {
    for (std::int64_t r = 0; r < unit_.rows; ++r) next_[r] += __builtin_popcountll(visible_[r]);
  }

  void score_tile(std::int64_t h) {
    // Keys that nobody sees are not read: they may never have been written.
    const std::int64_t columns = (count_ + kLanes - 1) / kLanes * kLanes;
    const Cached* rows[kKeyTile];
    for (std::int64_t i = 0; i < columns; ++i) {
      rows[i] = i < count_ && (seen_ >> i & 1) != 0 ? places_->rows[i] + h * dim_ : nullptr;
    }
    for (std::int64_t i = 0; i < columns; i += kLanes) {
      meet_.load_keys(rows + i, dim_, keys_ + i, ahead_);
    }
    std::int64_t from = 0;
    while (visible_[from] == 0) ++from;
    std::int64_t to = unit_.rows;
    while (visible_[to - 1] == 0) --to;
    const std::int64_t first = h * heads_ + from * group_;
    meet_.multiply((to - from) * group_, columns, dim_, params_.scale, queries_ + first * wide_,
                   wide_, keys_, tile_scores_, ahead_);
    float scales[kKeyTile];
    if constexpr (kIsScaled) {
      load_scales(params_.k_scale, h, scales);
      multiply_rows((to - from) * group_, columns, scales, tile_scores_, kKeyTile);
    }
    for (std::int64_t r = from; r < to; ++r) {
      std::int64_t at = next_[r];
      std::uint64_t left = visible_[r];
      while (left != 0) {  // every run of neighbouring keys
        const int key = __builtin_ctzll(left);
        const int length = run_length(left >> key);
        for (std::int64_t g = 0; g < group_; ++g) {
          const std::int64_t i = (r - from) * group_ + g;
          __builtin_memcpy(scores(first + i) + at, tile_scores_ + i * kKeyTile + key,
                           std::size_t(length) * sizeof(float));
        }
        at += length;
        left &= ~bit_range(key, key + length);
      }
    }
  }

  // The scales of a tile's keys, or values, of kv head h of the unit; 0 of those that nobody sees.
  void load_scales(const float* from, std::int64_t h, float* scales) const {
    for (std::int64_t i = 0; i < kKeyTile; ++i) {
      const bool is_seen = (seen_ >> i & 1) != 0;
      const std::int64_t slot = is_seen ? places_->slots[i] : 0;
      scales[i] = is_seen ? from[slot * params_.kv_heads + unit_.first_kv_head + h] : 0;
    }
  }

  // Scores or weights of neighbouring keys, of so many (row, head)s, times the scales.
  static void multiply_rows(std::int64_t heads, std::int64_t keys, const float* scales, float* x,
                            std::int64_t stride) {
    for (std::int64_t i = 0; i < heads; ++i, x += stride) {
      for (std::int64_t c = 0; c < keys; ++c) x[c] *= scales[c];
    }
  }

  void add_values(std::int64_t h) {
    // With few (row, head)s, values are used straight from the cache. With more they are converted
    // once, to a place where neighbouring keys do not fall into the same cache sets.
    const bool direct = heads_ <= 2 * kRowBlock && dim_ % 16 == 0;
    if (!direct) load_values(h);
    float scales[kKeyTile];
    if constexpr (kIsScaled) load_scales(params_.v_scale, h, scales);
    const std::int64_t lines =
        (dim_ * std::int64_t(sizeof(Cached)) + 63) / 64;  // of a key's values
    for (std::int64_t r = 0; r < unit_.rows;) {
      std::int64_t end = r + 1;
      while (end < unit_.rows && visible_[end] == visible_[r] && next_[end] == next_[r]) ++end;
      const std::int64_t first = h * heads_ + r * group_;
      const std::int64_t count = (end - r) * group_;
      float* sums = sums_ + first * wide_;
      float* weights = scores(first) + next_[r];
      std::uint64_t left = visible_[r];
      std::int64_t position = unit_.begin + next_[r];
      const std::int64_t steps = gemm_steps(count, wide_);
      StepsAhead ahead{ahead_, (lines + steps - 1) / steps};  // as many lines as are used
      while (left != 0) {
        const int key = __builtin_ctzll(left);
        const std::int64_t in_piece = kPieceKeys - position % kPieceKeys;
        int length = int(least(run_length(left >> key), in_piece));
        begin_pieces(h, r, end, position);
        if (direct) length = neighbours(key, length);
        if constexpr (kIsScaled) {
          multiply_rows(count, length, scales + key, weights, score_stride_);
        }
        const auto add = [&](const auto* values, std::int64_t stride) {
          gemm_block(count, wide_, length, weights, score_stride_, values, stride, sums, wide_,
                     false, ahead);
        };
        if (direct) {
          add(places_->rows[key] + h * dim_, row_size_);
        } else {
          add(values_ + key * wide_, wide_);
        }
        weights += length;
        position += length;
        end_pieces(h, r, end, position);
        left &= ~bit_range(key, key + length);
      }
      ahead_ = ahead.rows;
      r = end;
    }
  }

  // How many of the `length` keys from the tile's `key` on lie one after the other in the cache.
  int neighbours(int key, int length) const {
    int n = 1;
    while (n < length && places_->rows[key + n] == places_->rows[key] + n * row_size_) ++n;
    return n;
  }

  void load_values(std::int64_t h) {
    for (std::int64_t i = 0; i < count_; ++i) {
      if ((seen_ >> i & 1) == 0) continue;
      const Cached* from = places_->rows[i] + h * dim_;
      float* to = values_ + i * wide_;
      std::int64_t d = 0;
      for (; d + kLanes <= dim_; d += kLanes) store(to + d, load(from + d));
      for (; d < dim_; ++d) to[d] = to_float(from[d]);
      for (; d < wide_; ++d) to[d] = 0;
    }
  }

  // body(row, i) for every (row, head) of kv head h of the rows from r to `end`.
  template <class Body>
  TRTSPEC_INLINE void for_heads(std::int64_t h, std::int64_t r, std::int64_t end,
                                const Body& body) {
    for (; r < end; ++r) {
      for (std::int64_t g = 0; g < group_; ++g) body(rows_[r], h * heads_ + r * group_ + g);
    }
  }

  // Scores of a piece become weights before the first of its keys, which is at `position` of the
  // row, has its values added.
  void begin_pieces(std::int64_t h, std::int64_t r, std::int64_t end, std::int64_t position) {
    for_heads(h, r, end, [&](const AttentionRow& row, std::int64_t i) {
      if (position % kPieceKeys != 0 && position != row.begin) return;
      const std::int64_t left = row.begin + row.keys - position;
      const std::int64_t keys = least(kPieceKeys - position % kPieceKeys, left);
      piece_[i] = softmax(scores(i) + position - unit_.begin, keys, keys < left);
      for (std::int64_t d = 0; d < wide_; d += kLanes) store(sums_ + i * wide_ + d, VF{});
    });
  }

  // And its sums are kept, or joined with those before, behind its last key.
  void end_pieces(std::int64_t h, std::int64_t r, std::int64_t end, std::int64_t position) {
    for_heads(h, r, end, [&](const AttentionRow& row, std::int64_t i) {
      if (position % kPieceKeys != 0 && position != row.begin + row.keys) return;
      const float* sums = sums_ + i * wide_;
      if (unit_.shared < 0) return join(piece_[i], sums, wide_, joined_[i], results_ + i * wide_);
      const SharedRows& shared = parts_.shared[unit_.shared];
      const std::int64_t piece = (position - 1) / kPieceKeys - shared.first_piece;
      const std::int64_t part = shared.first_part + piece * unit_.kv_heads * heads_ + i;
      parts_.parts[part] = piece_[i];
      __builtin_memcpy(parts_.sums + part * padded_dim(dim_), sums,
                       std::size_t(wide_) * sizeof(float));
    });
  }

  const AttentionParams& params_;
  const AttentionUnit& unit_;
  const AttentionUnit* later_;
  const AttentionRow* rows_;
  const AttentionParts& parts_;
  Keys meet_;
  const std::int64_t group_;  // query heads of a kv head
  const std::int64_t heads_;  // (row, head)s of a kv head
  const std::int64_t dim_;
  const std::int64_t wide_;      // head_dim padded to whole vectors
  const std::int64_t row_size_;  // elements of a cache row, all kv heads
  const std::int64_t score_stride_;
  float* queries_;      // [row, head][wide], as Keys have them
  float* keys_;         // [dim][64], or what Keys keep there
  float* values_;       // [64][wide]
  float* tile_scores_;  // [row, head of a kv head][64]
  float* sums_;         // [row, head][wide], of a piece
  float* results_;      // as many, of the pieces before
  float* scores_;       // [row, head][score_stride]: scores, then weights
  AttentionPart piece_[kMaxUnitHeads];
  AttentionPart joined_[kMaxUnitHeads];
  bool is_keys_ = true;                  // the pass is over K, else over V
  const Cached* cache_ = nullptr;        // K or V, from the unit's first kv head on
  std::uint64_t seen_ = 0;               // keys of the tile that some row sees
  std::int64_t count_ = 0;               // keys of the tile up to the last seen one
  std::uint64_t visible_[kMaxUnitRows];  // keys of the tile that a row sees
  std::int64_t next_[kMaxUnitRows];      // index of a row's first score of the tile
  TilePlaces<Cached> tiles_[2] = {};
  TilePlaces<Cached>* places_ = tiles_;         // of the tile's rows
  TilePlaces<Cached>* following_ = tiles_ + 1;  // of those of the next tile
  RowsAhead ahead_{};
};

// Every unit, with `Keys` to meet its keys.
template <class Value, class Cached, class Keys>
void run_units(const AttentionParams& params, const AttentionRow* rows, const AttentionUnit* units,
               std::int64_t num_units, const AttentionScratch& layout, const AttentionParts& parts,
               float* scratch, int threads) {
  parallel_for(num_units, threads, [&](std::int64_t i, int thread) {
    const AttentionUnit* later = i + 1 < num_units ? units + i + 1 : nullptr;
    Unit<Value, Cached, Keys>(params, rows, units[i], later, layout, parts,
                              scratch + thread * layout.size)
        .run();
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
