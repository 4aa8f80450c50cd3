// A unit (some rows of a request, some heads) goes over the tokens that it sees in tiles of 64, and
// reads each once: scores, weights by the greatest score so far, weighted sums, which shrink when a
// greater score comes.
//
// Why no bit of a row depends on the rest: tiles are cut by rank, the place of a token in the list
// of those that the row sees. A score is one chain of multiply-adds; maxima are exact; whether sums
// shrink is decided by the row's own scores; a weight is added to lane rank % 16 of its sum; an
// output element is one chain over the tokens by rank. Tiles that all rows of a unit see are read
// for all of them, the rest row by row: the same operations.
//
// Only for kernel sources.
#pragma once
#include "gemm_block.hpp"
#include "latent_attention_kernel.hpp"
#include "parallel.hpp"
#include "rows_ahead.hpp"
#include "transpose.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// How queries meet the tokens of a tile: as floats, keys[d][i] element d of the i-th token.
template <class Value, class Cached>
struct LatentFloats {
  static void load_query(const Value* q, std::int64_t dim, float scale, std::int64_t at,
                         float* to) {
    std::int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(to + at + d, load(q + d) * scale);
    for (; d < dim; ++d) to[at + d] = to_float(q[d]) * scale;
  }

  // kLanes tokens, of which those at null are zeros; their elements come behind `at` others.
  static void load_keys(const Cached* const* tokens, std::int64_t dim, std::int64_t at, float* keys,
                        RowsAhead& ahead) {
    transpose_rows(tokens, dim, keys + at * kLatentTile, kLatentTile, ahead);
  }

  static void multiply(std::int64_t heads, std::int64_t columns, std::int64_t depth, float,
                       const float* queries, std::int64_t stride, const float* keys, float* scores,
                       RowsAhead& ahead) {
    gemm_block(heads, columns, depth, queries, stride, keys, kLatentTile, scores, kLatentTile, true,
               ahead);
  }
};

// What is kept of a (row, head) is at index row * heads + head of the unit.
// Cached: what the caches hold, Value, or 8 bits times the scale of a token.
template <class Value, class Cached, class Meet>
class LatentRows {
  static constexpr bool kIsScaled = sizeof(Cached) == 1;

 public:
  LatentRows(const LatentAttentionParams& params, const LatentUnit& unit,
             const LatentScratch& layout, float* scratch)
      : params_(params),
        rows_(params.rows),
        unit_(unit),
        layout_(layout),
        queries_(scratch + layout.queries),
        keys_(scratch + layout.keys),
        values_(scratch + layout.values),
        scores_(scratch + layout.scores),
        sums_(scratch + layout.sums),
        lanes_(scratch + layout.lanes),
        maxima_(scratch + layout.maxima) {}

  void run() {
    for (std::int64_t i = 0; i < unit_.rows * unit_.heads; ++i) load_query(i);
    find_tile(0);
    for (std::int64_t tile = 0; tile < unit_.shared; tile += kLatentTile) {
      for (int i = 0; i < kLatentTile; ++i) slots_[i] = following_[i];
      if (tile + kLatentTile < unit_.shared) find_tile(tile + kLatentTile);
      attend(0, unit_.rows, kLatentTile, tile == 0);
    }
    for (std::int64_t r = 0; r < unit_.rows; ++r) finish_row(r);
  }

 private:
  std::int64_t slot_of(std::int64_t position) const {
    const std::int32_t* table = rows_.block_tables + unit_.request * rows_.table_width;
    return table[position / rows_.block_size] * rows_.block_size + position % rows_.block_size;
  }

  // Slots of the tile that comes next, whose latents come nearer meanwhile.
  void find_tile(std::int64_t tile) {
    if (unit_.shared == 0) return;
    const auto* latents = static_cast<const Cached*>(params_.latent_cache);
    for (int i = 0; i < kLatentTile; ++i) {
      following_[i] = slot_of(tile + i);
      ahead_rows_[i] = reinterpret_cast<const char*>(latents + following_[i] * params_.rank);
    }
    const std::int64_t bytes = params_.rank * std::int64_t(sizeof(Cached));
    ahead_ = {ahead_rows_, ahead_rows_ + kLatentTile - 1, ahead_rows_[0], ahead_rows_[0] + bytes,
              bytes};
  }

  void load_query(std::int64_t i) {
    const std::int64_t row = unit_.first_row + i / unit_.heads;
    const std::int64_t head = row * params_.heads + unit_.first_head + i % unit_.heads;
    float* to = queries_ + i * layout_.query_stride;
    Meet::load_query(static_cast<const Value*>(params_.q_latent) + head * params_.rank,
                     params_.rank, params_.scale, 0, to);
    Meet::load_query(static_cast<const Value*>(params_.q_rope) + head * params_.rope_dim,
                     params_.rope_dim, params_.scale, params_.rank, to);
  }

  // What a row sees behind the shared tiles: committed and causal positions, then those of its
  // mask.
  void finish_row(std::int64_t r) {
    const std::int64_t t = unit_.first_row + r;
    std::int64_t rank = unit_.shared;
    int count = 0;
    const auto take = [&](std::int64_t position) {
      slots_[count++] = slot_of(position);
      if (count == kLatentTile) {
        attend(r, 1, count, rank == 0);
        rank += count;
        count = 0;
      }
    };
    const bool is_padding = rows_.slot_mapping[t] < 0;
    if (!is_padding) {
      const bool is_tree = rows_.is_tree[unit_.request];
      std::int64_t end = rows_.context_lens[unit_.request];
      if (!is_tree) end += t - rows_.query_start[unit_.request] + 1;
      for (std::int64_t position = unit_.shared; position < end; ++position) take(position);
      const std::int64_t* mask = rows_.tree_mask + t * rows_.mask_words;
      for (std::int64_t w = 0; is_tree && w < rows_.mask_words; ++w) {
        for (auto bits = std::uint64_t(mask[w]); bits != 0; bits &= bits - 1) {
          take(end + w * 64 + __builtin_ctzll(bits));
        }
      }
      if (count > 0) attend(r, 1, count, rank == 0);
    }
    const bool sees = !is_padding && rank + count > 0;
    for (std::int64_t h = 0; h < unit_.heads; ++h) store_result(r * unit_.heads + h, sees);
  }

  // `count` tokens at slots_ for all heads of some rows.
  void attend(std::int64_t first_row, std::int64_t rows, int count, bool fresh) {
    const std::int64_t first = first_row * unit_.heads;
    const std::int64_t heads = rows * unit_.heads;
    load_tokens(count);
    const std::int64_t columns = (count + kLanes - 1) / kLanes * kLanes;
    float* scores = scores_ + first * kLatentTile;
    Meet::multiply(heads, columns, params_.rank + params_.rope_dim, params_.scale,
                   queries_ + first * layout_.query_stride, layout_.query_stride, keys_, scores,
                   ahead_);
    for (std::int64_t i = first; i < first + heads; ++i) weigh(i, count, fresh);
    gemm_block(heads, layout_.value_stride, count, scores, kLatentTile, values_,
               layout_.value_stride, sums_ + first * layout_.value_stride, layout_.value_stride,
               fresh, ahead_);
  }

  void load_tokens(int count) {
    const auto* latents = static_cast<const Cached*>(params_.latent_cache);
    const auto* ropes = static_cast<const Cached*>(params_.key_cache);
    const Cached* latent[kLatentTile];
    const Cached* rope[kLatentTile];
    for (int i = 0; i < count; ++i) {
      latent[i] = latents + slots_[i] * params_.rank;
      rope[i] = ropes + slots_[i] * params_.rope_dim;
    }
    for (int i = count; i < kLatentTile; ++i) latent[i] = rope[i] = nullptr;
    for (int i = 0; i < count; i += kLanes) {
      Meet::load_keys(latent + i, params_.rank, 0, keys_ + i, ahead_);
      Meet::load_keys(rope + i, params_.rope_dim, params_.rank, keys_ + i, ahead_);
    }
    if constexpr (kIsScaled) {
      scale_keys(params_.latent_scale, 0, params_.rank, count);
      scale_keys(params_.key_scale, params_.rank, params_.rank + params_.rope_dim, count);
    }
    for (int i = 0; i < count; ++i) {
      float* to = values_ + i * layout_.value_stride;
      float scale = 1;
      if constexpr (kIsScaled) scale = params_.latent_scale[slots_[i]];
      std::int64_t d = 0;
      for (; d + kLanes <= params_.rank; d += kLanes) store(to + d, load(latent[i] + d) * scale);
      for (; d < params_.rank; ++d) to[d] = to_float(latent[i][d]) * scale;
      for (; d < layout_.value_stride; ++d) to[d] = 0;
    }
  }

  // The elements from `begin` to `end` of the tile's keys, times the scale of each token.
  void scale_keys(const float* scales, std::int64_t begin, std::int64_t end, int count) {
    float own[kLatentTile] = {};
    for (int i = 0; i < count; ++i) own[i] = scales[slots_[i]];
    for (std::int64_t d = begin; d < end; ++d) {
      float* const keys = keys_ + d * kLatentTile;
      for (int i = 0; i < count; i += kLanes) store(keys + i, load(keys + i) * load(own + i));
    }
  }

  // Scores of a tile become weights e^(score - greatest so far).
  void weigh(std::int64_t i, int count, bool fresh) {
    const float lowest = -__builtin_inff();
    float* scores = scores_ + i * kLatentTile;
    float* lanes = lanes_ + i * 16;
    const int padded = (count + 15) / 16 * 16;
    for (int j = count; j < padded; ++j) scores[j] = lowest;
    VF most = splat(lowest);
    for (int j = 0; j < padded; j += kLanes) most = max(most, load(scores + j));
    float greatest = fresh ? lowest : maxima_[i];
    for (int j = 0; j < kLanes; ++j) greatest = most[j] > greatest ? most[j] : greatest;
    if (fresh) {
      for (int j = 0; j < 16; j += kLanes) store(lanes + j, VF{});
    } else if (greatest > maxima_[i]) {
      const VF shrink = exp(splat(maxima_[i] - greatest));
      for (int j = 0; j < 16; j += kLanes) store(lanes + j, load(lanes + j) * shrink);
      float* sums = sums_ + i * layout_.value_stride;
      for (std::int64_t d = 0; d < layout_.value_stride; d += kLanes) {
        store(sums + d, load(sums + d) * shrink);
      }
    }
    maxima_[i] = greatest;
    for (int j = 0; j < padded; j += kLanes) {
      const VF weight = exp(load(scores + j) - splat(greatest));
      store(scores + j, weight);
      store(lanes + j % 16, load(lanes + j % 16) + weight);
    }
  }

  void store_result(std::int64_t i, bool sees) {
    const std::int64_t row = unit_.first_row + i / unit_.heads;
    const std::int64_t head = row * params_.heads + unit_.first_head + i % unit_.heads;
    Value* out = static_cast<Value*>(params_.out) + head * params_.rank;
    if (!sees) {
      __builtin_memset(out, 0, std::size_t(params_.rank) * sizeof(Value));
      return;
    }
    const float total = sum16(lanes_ + i * 16);
    const float* sums = sums_ + i * layout_.value_stride;
    std::int64_t d = 0;
    for (; d + kLanes <= params_.rank; d += kLanes) store(out + d, load(sums + d) / splat(total));
    for (; d < params_.rank; ++d) from_float(sums[d] / total, out + d);
  }

  const LatentAttentionParams& params_;
  const CachedRows& rows_;
  const LatentUnit& unit_;
  const LatentScratch& layout_;
  float* queries_;
  float* keys_;
  float* values_;
  float* scores_;
  float* sums_;
  float* lanes_;
  float* maxima_;
  std::int64_t slots_[kLatentTile];      // of the tokens of the tile
  std::int64_t following_[kLatentTile];  // of those of the next one
  const char* ahead_rows_[kLatentTile];
  const char nothing_[64] = {};
  const char* const nowhere_ = nothing_;
  RowsAhead ahead_{&nowhere_, &nowhere_, nothing_, nothing_ + 64, 64};
};

template <class Value, class Cached, class Meet>
void run_latent_units(const LatentAttentionParams& params, const LatentUnit* units,
                      std::int64_t num_units, const LatentScratch& layout, float* scratch,
                      int threads) {
  parallel_for(num_units, threads, [&](std::int64_t i, int thread) {
    LatentRows<Value, Cached, Meet>(params, units[i], layout, scratch + thread * layout.size).run();
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
