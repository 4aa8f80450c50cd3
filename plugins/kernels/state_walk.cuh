// Whose state a row reads (cpp/include/trtspec/state_walk.hpp).
#pragma once

#include <trtspec/state_walk.hpp>

#include "device.cuh"

namespace trtspec::cuda {

// The request of a row; -1: it is padding.
__device__ inline std::int64_t request_of(const StateWalk& walk, std::int64_t row) {
  if (walk.requests == 0 || row >= walk.query_start[walk.requests]) return -1;
  std::int64_t low = 0;
  std::int64_t high = walk.requests;  // the last one that begins at the row or before is in between
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (walk.query_start[middle] <= row ? low : high) = middle;
  }
  return walk.state_slots[low] < 0 ? -1 : low;
}

// The row of the call that a row of a request follows; -1: the committed tokens.
__device__ inline std::int64_t parent_of(const StateWalk& walk, std::int64_t request,
                                         std::int64_t row) {
  const std::int64_t first = walk.query_start[request];
  const std::int64_t place = row - first;
  if (!walk.is_tree[request] || place == 0) return place == 0 ? -1 : row - 1;
  for (std::int64_t word = (place - 1) / 64; word >= 0; --word) {
    auto bits = static_cast<unsigned long long>(walk.tree_mask[row * walk.mask_words + word]);
    const std::int64_t left = place - word * 64;
    if (left < 64) bits &= (1ull << left) - 1;
    if (bits != 0) return first + word * 64 + 63 - __clzll(static_cast<long long>(bits));
  }
  return -1;
}

// What the block of a row does with its columns of a head's state, whose `Columns` are of the row's
// request (-1: padding): a chain's first row has them all, of a tree each row walks its own path
// from the committed state. All threads of a block call it.
template <class Columns>
__device__ void read_states(const StateWalk& walk, std::int64_t row, std::int64_t request,
                            Columns& columns) {
  if (request < 0) {
    columns.store(row, 0);
    return;
  }
  const std::int64_t first = walk.query_start[request];
  if (!walk.is_tree[request]) {
    if (row != first) return;
    columns.load_state();
    for (std::int64_t each = first; each < walk.query_start[request + 1]; ++each) {
      columns.store(each, columns.take_in(each));
    }
    columns.store_state();
    return;
  }
  columns.load_state();
  float out = 0;
  for (std::int64_t word = 0; word < walk.mask_words; ++word) {
    auto bits = static_cast<unsigned long long>(walk.tree_mask[row * walk.mask_words + word]);
    for (; bits != 0; bits &= bits - 1) {
      const int bit = 63 - __clzll(static_cast<long long>(bits & (~bits + 1)));
      out = columns.take_in(first + word * 64 + bit);
    }
  }
  columns.store(row, out);
  if (row != first) columns.keep(row);
}

// Behind all of that: a tree's root, which others read the state before, is taken in.
template <class Columns>
__device__ void take_in_root(const StateWalk& walk, std::int64_t request, Columns& columns) {
  const std::int64_t first = walk.query_start[request];
  const bool has_rows = first < walk.query_start[request + 1];
  if (!walk.is_tree[request] || walk.state_slots[request] < 0 || !has_rows) return;
  columns.load_state();
  columns.take_in(first);
  columns.store_state();
}

}  // namespace trtspec::cuda
