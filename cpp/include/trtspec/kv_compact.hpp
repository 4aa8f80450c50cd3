// Moves rows of K/V caches: the accepted rows of a tree go to consecutive slots.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

namespace trtspec {

// In each of `num_caches` caches, the row at src_slots[i] moves to dst_slots[i], for i in [0, n),
// as if all rows were read before any is written. A row is `row_bytes` long and slot s begins at
// s * row_bytes; a cache has num_slots slots. Pairs with slot -1 (either side) are skipped.
// Throws std::invalid_argument for a slot outside [-1, num_slots) or a destination used twice.
void kv_compact(void* const* caches, std::int64_t num_caches, std::int64_t row_bytes,
                std::int64_t num_slots, const std::int64_t* src_slots,
                const std::int64_t* dst_slots, std::int64_t n);

}  // namespace trtspec
