#include "cached_rows.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <vector>

namespace trtspec {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& message) {
  throw std::invalid_argument(std::string(op) + ": " + message);
}

std::string text(std::int64_t value) { return std::to_string(value); }

}  // namespace

void check_rows(const CachedRows& p, const char* op) {
  if (p.requests > 0 && p.query_start[0] != 0) {
    refuse(op, "query_start must begin with 0, got " + text(p.query_start[0]));
  }
  for (std::int64_t b = 0; b < p.requests; ++b) {
    if (p.query_start[b + 1] < p.query_start[b] || p.query_start[b + 1] > p.rows) {
      refuse(op, "query_start must rise to at most " + text(p.rows) + " rows, got " +
                     text(p.query_start[b]) + " then " + text(p.query_start[b + 1]) +
                     " for request " + text(b));
    }
    if (p.context_lens[b] < 0) {
      refuse(op, "context_lens must not be negative, got " + text(p.context_lens[b]) +
                     " for request " + text(b));
    }
  }
  const std::int64_t slots = p.num_blocks * p.block_size;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    if (p.slot_mapping[t] < -1 || p.slot_mapping[t] >= slots) {
      refuse(op, "slot " + text(p.slot_mapping[t]) + " of row " + text(t) + " is not in [-1, " +
                     text(slots) + ")");
    }
  }
}

void check_blocks(const CachedRows& p, const char* op, std::int64_t b) {
  std::int64_t seen = 0;  // positions from 0 on
  std::int64_t reach = 0;
  std::vector<std::uint64_t> tree(static_cast<std::size_t>(p.mask_words));
  const std::int64_t first = p.query_start[b];
  for (std::int64_t t = first; t < p.query_start[b + 1]; ++t) {
    if (p.slot_mapping[t] < 0) continue;
    seen = std::max(seen, p.context_lens[b] + (p.is_tree[b] ? 0 : t - first + 1));
    for (std::size_t w = 0; p.is_tree[b] && w < tree.size(); ++w) {
      const auto bits = static_cast<std::uint64_t>(p.tree_mask[t * p.mask_words + std::int64_t(w)]);
      tree[w] |= bits;
      if (bits == 0) continue;
      reach =
          std::max(reach, p.context_lens[b] + std::int64_t(w) * 64 + 64 - std::countl_zero(bits));
    }
  }
  reach = std::max(reach, seen);
  if (reach > p.table_width * p.block_size) {
    refuse(op, "request " + text(b) + " reaches cache position " + text(reach - 1) +
                   ", but its block table of " + text(p.table_width) + " blocks of " +
                   text(p.block_size) + " holds " + text(p.table_width * p.block_size));
  }
  const auto check_position = [&](std::int64_t position) {
    const std::int64_t block = p.block_tables[b * p.table_width + position / p.block_size];
    if (block < 0 || block >= p.num_blocks) {
      refuse(op, "request " + text(b) + " sees cache position " + text(position) + " in block " +
                     text(block) + ", which is not in [0, " + text(p.num_blocks) + ")");
    }
  };
  for (std::int64_t i = 0; i < seen; i += p.block_size) check_position(i);
  for (std::size_t w = 0; w < tree.size(); ++w) {
    for (std::uint64_t bits = tree[w]; bits != 0; bits &= bits - 1) {
      check_position(p.context_lens[b] + std::int64_t(w) * 64 + std::countr_zero(bits));
    }
  }
}

}  // namespace trtspec
