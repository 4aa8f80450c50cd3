// Rows of a cache that come nearer from memory while others are used. Only for kernel sources.
#pragma once
#include <cstdint>

#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Prefetches rows of a cache, one line a step, not into the smallest cache, which a tile fills;
// after the last it stays there. Null rows may be among them.
struct RowsAhead {
  const char* const* row;  // the row in progress
  const char* const* last;
  const char* next;
  const char* end;
  std::int64_t bytes;  // of a row

  TRTSPEC_INLINE void step() {
    __builtin_prefetch(next, 0, 2);
    next += 64;
    if (next < end) return;
    if (row == last) {
      next -= 64;
    } else {
      ++row;
      next = *row;
      end = next + bytes;
    }
  }
};

// So many of its steps at each one.
struct StepsAhead {
  RowsAhead rows;
  std::int64_t steps;

  TRTSPEC_INLINE void step() {
    for (std::int64_t i = 0; i < steps; ++i) rows.step();
  }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
