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

}  // namespace trtspec::cuda
