// What the kernels of the resident step share (cpp/include/trtspec/resident_step.hpp).
#pragma once

#include <trtspec/resident_step.hpp>

#include "device.cuh"

namespace trtspec::cuda {

// Whether a token ends the text of a place.
__device__ __forceinline__ bool ends_text(const ResidentRequests& all, std::int64_t place,
                                          std::int64_t token) {
  const std::int64_t* const ends = all.ends + place * all.num_ends;
  for (std::int64_t i = 0; i < all.num_ends && ends[i] >= 0; ++i) {
    if (ends[i] == token) return true;
  }
  return false;
}

// Positions and rings have 31 bits: a division of 64 would be a call of many instructions.

// Where the pair of a position waits.
__device__ __forceinline__ std::int64_t ring_row(const ResidentRequests& all, std::int64_t place,
                                                 std::int64_t position) {
  const int ring = static_cast<int>(all.ring), rest = static_cast<int>(position) % ring;
  return place * ring + (rest < 0 ? rest + ring : rest);
}

// The slot of a row of a request in a cache.
__device__ __forceinline__ std::int64_t slot_of(const std::int32_t* blocks, std::int64_t block_size,
                                                std::int64_t row) {
  const auto at = static_cast<unsigned>(row), size = static_cast<unsigned>(block_size);
  return std::int64_t{blocks[at / size]} * size + at % size;
}

}  // namespace trtspec::cuda
