#include <trtspec/attention.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention_kernel.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace trtspec {
namespace {

constexpr std::int64_t kHeadRows = 64;         // (row, head)s that share a reading of a kv head
constexpr std::int64_t kHeadScores = 1 << 20;  // floats of their scores
constexpr std::int64_t kUnitScores = 1 << 19;  // floats of scores of a unit of several kv heads
constexpr double kGrain = 1 << 17;             // multiply-adds that are worth a thread
constexpr double kCopyGrain = 1 << 18;         // bytes that are worth a thread

[[noreturn]] void fail(const std::string& message) {
  throw std::invalid_argument("paged_tree_attention: " + message);
}

std::string str(std::int64_t value) { return std::to_string(value); }

void check(const AttentionParams& p) {
  if (p.kv_heads <= 0 || p.heads % p.kv_heads != 0) {
    fail(str(p.heads) + " query heads are not a multiple of " + str(p.kv_heads) + " kv heads");
  }
  if (p.requests > 0 && p.query_start[0] != 0) {
    fail("query_start must begin with 0, got " + str(p.query_start[0]));
  }
  for (std::int64_t b = 0; b < p.requests; ++b) {
    if (p.query_start[b + 1] < p.query_start[b] || p.query_start[b + 1] > p.rows) {
      fail("query_start must rise to at most " + str(p.rows) + " rows, got " +
           str(p.query_start[b]) + " then " + str(p.query_start[b + 1]) + " for request " + str(b));
    }
    if (p.context_lens[b] < 0) {
      fail("context_lens must not be negative, got " + str(p.context_lens[b]) + " for request " +
           str(b));
    }
  }
  const std::int64_t slots = p.num_blocks * p.block_size;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    if (p.slot_mapping[t] < -1 || p.slot_mapping[t] >= slots) {
      fail("slot " + str(p.slot_mapping[t]) + " of row " + str(t) + " is not in [-1, " +
           str(slots) + ")");
    }
  }
}

void write_cache(const AttentionParams& p) {
  if (p.k == nullptr) return;
  const std::size_t row_bytes =
      static_cast<std::size_t>(p.kv_heads * p.head_dim) * size_of(p.dtype);
  const std::size_t element = size_of(p.dtype);
  const int threads = base::threads_for(2.0 * double(p.rows) * double(row_bytes), kCopyGrain);
  if (p.k_scale != nullptr) {
    TRTSPEC_DISPATCH(attention_write_kernel, p, threads);
    return;
  }
  base::parallel_for(p.rows, threads, [&](std::int64_t t, int) {
    if (p.slot_mapping[t] < 0) return;
    const std::size_t slot = static_cast<std::size_t>(p.slot_mapping[t]) * row_bytes;
    std::memcpy(static_cast<char*>(p.k_cache) + slot,
                static_cast<const char*>(p.k) + static_cast<std::size_t>(t * p.k_stride) * element,
                row_bytes);
    std::memcpy(static_cast<char*>(p.v_cache) + slot,
                static_cast<const char*>(p.v) + static_cast<std::size_t>(t * p.v_stride) * element,
                row_bytes);
  });
}

// What row t, the index-th of request b, sees; sets *end to one more than its greatest position.
AttentionRow visible_keys(const AttentionParams& p, std::int64_t b, std::int64_t t,
                          std::int64_t index, std::int64_t* end) {
  const std::int64_t context = p.context_lens[b];
  *end = 0;
  if (p.slot_mapping[t] < 0) return AttentionRow{0, 0, nullptr, 0};
  AttentionRow row{0, context, nullptr, 0};
  if (!p.is_tree[b]) row.end = context + index + 1;
  if (p.sliding_window > 0) {
    row.begin = std::clamp<std::int64_t>(p.positions[t] - p.sliding_window + 1, 0, row.end);
  }
  row.keys = row.end - row.begin;
  *end = row.end;
  if (p.is_tree[b]) {
    row.mask = p.tree_mask + t * p.mask_words;
    for (std::int64_t w = 0; w < p.mask_words; ++w) {
      const auto bits = static_cast<std::uint64_t>(row.mask[w]);
      row.keys += std::popcount(bits);
      if (bits != 0) *end = context + w * 64 + 64 - std::countl_zero(bits);
    }
  }
  return row;
}

struct Plan {
  std::vector<AttentionRow> rows;  // those of the call; then what shared rows see of some pieces
  std::vector<AttentionUnit> units;
  std::vector<SharedRows> shared;
  std::int64_t parts = 0;       // of shared rows
  std::int64_t longest = 0;     // scores of a (row, head), at most
  std::int64_t most_heads = 0;  // (row, head)s of a unit, at most
  double work = 0;

  AttentionRow& view(const AttentionUnit& unit, std::int64_t i) {
    return rows[static_cast<std::size_t>(unit.first_view + i)];
  }
};

// How many units a request's rows are divided into: by rows, by kv heads and by pieces of keys.
struct Division {
  std::int64_t unit_rows;
  std::int64_t max_kv_heads;
  std::int64_t key_parts;  // at most
};

// Every block that holds a key which some row of request b sees must exist.
void check_blocks(const AttentionParams& p, std::int64_t b, const Plan& plan) {
  std::int64_t begin = INT64_MAX;
  std::int64_t end = 0;
  std::vector<std::uint64_t> tree(static_cast<std::size_t>(p.mask_words));
  for (std::int64_t t = p.query_start[b]; t < p.query_start[b + 1]; ++t) {
    const AttentionRow& row = plan.rows[static_cast<std::size_t>(t)];
    if (row.begin < row.end) {
      begin = std::min(begin, row.begin);
      end = std::max(end, row.end);
    }
    for (std::size_t w = 0; row.mask != nullptr && w < tree.size(); ++w) {
      tree[w] |= static_cast<std::uint64_t>(row.mask[w]);
    }
  }
  const auto check_position = [&](std::int64_t position) {
    const std::int64_t block = p.block_tables[b * p.table_width + position / p.block_size];
    if (block < 0 || block >= p.num_blocks) {
      fail("request " + str(b) + " sees cache position " + str(position) + " in block " +
           str(block) + ", which is not in [0, " + str(p.num_blocks) + ")");
    }
  };
  for (std::int64_t i = begin; i < end; i = (i / p.block_size + 1) * p.block_size) {
    check_position(i);
  }
  for (std::size_t w = 0; w < tree.size(); ++w) {
    for (std::uint64_t bits = tree[w]; bits != 0; bits &= bits - 1) {
      check_position(p.context_lens[b] + std::int64_t(w) * 64 + std::countr_zero(bits));
    }
  }
}

// Adds a unit, whose views are complete.
void add_unit(const AttentionUnit& unit, std::int64_t group, Plan* plan) {
  for (std::int64_t i = 0; i < unit.rows; ++i) {
    const AttentionRow& row = plan->view(unit, i);
    if (row.keys > 0) {
      plan->longest = std::max(plan->longest, row.begin - unit.begin + row.keys);
    }
  }
  plan->most_heads = std::max(plan->most_heads, unit.kv_heads * unit.rows * group);
  plan->units.push_back(unit);
}

// Pieces of committed keys that every row of a unit sees to their ends, and the one behind them.
std::int64_t divisible_pieces(const AttentionUnit& unit, Plan* plan) {
  std::int64_t end = unit.end;
  for (std::int64_t i = 0; i < unit.rows; ++i) {
    const AttentionRow& row = plan->view(unit, i);
    if (row.keys > 0) end = std::min(end, row.end);
  }
  return std::max<std::int64_t>(end / kPieceKeys - unit.begin / kPieceKeys, 0) + 1;
}

// Adds a unit in `parts` of some pieces each, whose results are joined in the end. Keys that are not
// committed, which rows of a tree have at other places of the cache, all belong to the last.
void add_parts(const AttentionUnit& whole, std::int64_t group, std::int64_t parts,
               std::int64_t pieces, Plan* plan) {
  SharedRows shared{whole.first_kv_head, whole.kv_heads,           whole.first_row,
                    whole.rows,          whole.begin / kPieceKeys, 0,
                    plan->parts};
  for (std::int64_t part = 0; part < parts; ++part) {
    const bool is_last = part + 1 == parts;
    const std::int64_t from = (shared.first_piece + pieces * part / parts) * kPieceKeys;
    const std::int64_t to = (shared.first_piece + pieces * (part + 1) / parts) * kPieceKeys;
    AttentionUnit unit = whole;
    unit.begin = std::max(whole.begin, from);
    unit.end = is_last ? whole.end : to;
    unit.first_view = static_cast<std::int64_t>(plan->rows.size());
    unit.shared = static_cast<std::int64_t>(plan->shared.size());
    for (std::int64_t i = 0; i < whole.rows; ++i) {
      AttentionRow row = plan->view(whole, i);
      const std::int64_t before = std::clamp<std::int64_t>(unit.begin - row.begin, 0, row.keys);
      row.begin += before;
      row.keys -= before;
      if (!is_last) {
        row.end = std::min(row.end, to);
        row.keys = std::max<std::int64_t>(row.end - row.begin, 0);
        row.mask = nullptr;
      }
      if (row.keys > 0) {
        const std::int64_t last = (row.begin + row.keys - 1) / kPieceKeys;
        shared.pieces = std::max(shared.pieces, last - shared.first_piece + 1);
      }
      plan->rows.push_back(row);
    }
    add_unit(unit, group, plan);
  }
  plan->parts += shared.pieces * whole.kv_heads * whole.rows * group;
  plan->shared.push_back(shared);
}

// Divides the rows of request b into units.
void plan_request(const AttentionParams& p, std::int64_t b, const Division& division, Plan* plan) {
  const std::int64_t first = p.query_start[b];
  const std::int64_t count = p.query_start[b + 1] - first;
  std::vector<std::int64_t> ends(static_cast<std::size_t>(count));
  std::int64_t longest = 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const AttentionRow row = visible_keys(p, b, first + i, i, &ends[static_cast<std::size_t>(i)]);
    plan->rows[static_cast<std::size_t>(first + i)] = row;
    longest = std::max(longest, row.begin + row.keys);
    last = std::max(last, ends[static_cast<std::size_t>(i)]);
  }
  if (last > p.table_width * p.block_size) {
    fail("request " + str(b) + " reaches cache position " + str(last - 1) +
         ", but its block table of " + str(p.table_width) + " blocks of " + str(p.block_size) +
         " holds " + str(p.table_width * p.block_size));
  }
  check_blocks(p, b, *plan);
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t unit_rows =
      std::clamp<std::int64_t>(kHeadScores / (longest + 32) / group, 1, division.unit_rows);
  const std::int64_t tiles = (count + unit_rows - 1) / unit_rows;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t from = count * tile / tiles;
    const std::int64_t to = count * (tile + 1) / tiles;
    AttentionUnit unit{b, 0, 0, first + from, to - from, INT64_MAX, 0, first + from, -1};
    std::int64_t keys = 0;
    for (std::int64_t i = from; i < to; ++i) {
      const AttentionRow& row = plan->rows[static_cast<std::size_t>(first + i)];
      if (row.keys == 0) continue;
      unit.begin = std::min(unit.begin, row.begin);
      unit.end = std::max(unit.end, ends[static_cast<std::size_t>(i)]);
      keys += row.keys;
    }
    unit.begin = std::min(unit.begin, unit.end);
    plan->work += double(p.heads * p.head_dim) * 2.0 * double(keys + unit.end - unit.begin);
    const std::int64_t pieces = division.key_parts > 1 ? divisible_pieces(unit, plan) : 1;
    const std::int64_t key_parts = std::min(division.key_parts, pieces);
    // Neighbouring kv heads lie next to each other in the cache: together they are read faster.
    const std::int64_t head_rows = unit.rows * group;
    const std::int64_t most =
        std::clamp<std::int64_t>(std::min(kUnitScores / (longest + 32), kMaxUnitHeads) / head_rows,
                                 1, division.max_kv_heads);
    const std::int64_t parts = (p.kv_heads + most - 1) / most;
    for (std::int64_t part = 0; part < parts; ++part) {
      unit.first_kv_head = p.kv_heads * part / parts;
      unit.kv_heads = p.kv_heads * (part + 1) / parts - unit.first_kv_head;
      if (key_parts > 1) {
        add_parts(unit, group, key_parts, pieces, plan);
      } else {
        add_unit(unit, group, plan);
      }
    }
  }
}

Plan make_plan(const AttentionParams& p) {
  Plan plan;
  plan.rows.resize(static_cast<std::size_t>(p.rows));
  const std::int64_t group = p.heads / p.kv_heads;
  std::int64_t unit_rows = std::clamp<std::int64_t>(kHeadRows / group, 1, kMaxUnitRows);
  // Every thread should find some units: fewer kv heads in each, then fewer rows (which reads K and
  // V more often), then fewer keys.
  const std::int64_t threads = max_threads();
  const std::int64_t wanted = threads == 1 ? 1 : 2 * threads;
  const std::int64_t rows = (p.rows + p.requests - 1) / p.requests;
  const auto units = [&](std::int64_t parts) {
    return p.requests * parts * ((rows + unit_rows - 1) / unit_rows);
  };
  const std::int64_t least_rows = std::max<std::int64_t>(1, 6 / group);
  while (unit_rows > least_rows && units(p.kv_heads) < wanted) {
    unit_rows = std::max(least_rows, unit_rows / 2);
  }
  std::int64_t parts = 1;
  while (parts < p.kv_heads && units(parts) < wanted) ++parts;
  Division division{unit_rows, (p.kv_heads + parts - 1) / parts, 1};
  // Twice as many as of whole heads, for what remains to share is little.
  if (units(parts) < wanted) division.key_parts = (2 * wanted + units(parts) - 1) / units(parts);
  for (std::int64_t b = 0; b < p.requests; ++b) plan_request(p, b, division, &plan);
  return plan;
}

AttentionScratch make_layout(const AttentionParams& p, const Plan& plan) {
  const std::int64_t heads = plan.most_heads;
  const std::int64_t dim = padded_dim(p.head_dim);
  AttentionScratch layout{};
  std::int64_t at = 0;
  const auto take = [&at](std::int64_t floats) {
    const std::int64_t from = at;
    at += (floats + 15) / 16 * 16;
    return from;
  };
  // Room for padding to whole vectors; an odd number of cache lines keeps rows in different sets.
  layout.score_stride = (plan.longest + 16 + 31) / 32 * 32 + 16;
  layout.queries = take(heads * dim);
  layout.keys = take(dim * kKeyTile);
  layout.values = take(kKeyTile * dim);
  layout.tile_scores = take(heads * kKeyTile);
  layout.sums = take(heads * dim);
  layout.results = take(heads * dim);
  layout.scores = take(heads * layout.score_stride);
  layout.size = at + 64;
  return layout;
}

void run_units(const AttentionParams& p, const Plan& plan, const AttentionScratch& layout,
               const AttentionParts& parts, float* scratch, int threads) {
  const auto* rows = plan.rows.data();
  const auto* units = plan.units.data();
  const auto count = static_cast<std::int64_t>(plan.units.size());
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
  const bool in_pairs =
      p.dtype == DType::bf16 && p.head_dim % (p.k_scale != nullptr ? 64 : 32) == 0;
  if (in_pairs && active_isa() >= Isa::amx) {
    return amx::attention_amx(p, rows, units, count, layout, parts, scratch, threads);
  }
  if (in_pairs && active_isa() >= Isa::avx512_bf16) {
    return avx512_bf16::attention_dot(p, rows, units, count, layout, parts, scratch, threads);
  }
#endif
  TRTSPEC_DISPATCH(attention_kernel, p, rows, units, count, layout, parts, scratch, threads);
}

}  // namespace

void paged_tree_attention(const AttentionParams& p) {
  if (p.rows <= 0) return;
  check(p);
  if (p.requests > 0) {
    const Plan plan = make_plan(p);  // checks what it reads, so: before anything is written
    write_cache(p);
    const AttentionScratch layout = make_layout(p, plan);
    const int threads = base::threads_for(plan.work, kGrain);
    const Scratch<float> scratch = make_scratch<float>(threads * layout.size);
    std::vector<AttentionPart> made(static_cast<std::size_t>(plan.parts));
    const Scratch<float> sums = make_scratch<float>(plan.parts * padded_dim(p.head_dim));
    const AttentionParts parts{plan.shared.data(), static_cast<std::int64_t>(plan.shared.size()),
                               made.data(), sums.get()};
    run_units(p, plan, layout, parts, scratch.get(), threads);
    if (parts.count > 0) TRTSPEC_DISPATCH(attention_join_kernel, p, parts);
  }
  const std::int64_t used = p.requests > 0 ? p.query_start[p.requests] : 0;
  const std::size_t row_bytes = static_cast<std::size_t>(p.heads * p.head_dim) * size_of(p.dtype);
  std::memset(static_cast<char*>(p.out) + static_cast<std::size_t>(used) * row_bytes, 0,
              static_cast<std::size_t>(p.rows - used) * row_bytes);
}

}  // namespace trtspec
