#include <trtspec/kv_compact.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace trtspec {
namespace {

using Moves = std::vector<std::pair<std::int64_t, std::int64_t>>;

Moves checked_moves(std::int64_t num_slots, const std::int64_t* src_slots,
                    const std::int64_t* dst_slots, std::int64_t n) {
  Moves moves;
  for (std::int64_t i = 0; i < n; ++i) {
    for (const std::int64_t slot : {src_slots[i], dst_slots[i]}) {
      if (slot < -1 || slot >= num_slots) {
        throw std::invalid_argument("kv_compact: slot " + std::to_string(slot) + " of row " +
                                    std::to_string(i) + " is not in [-1, " +
                                    std::to_string(num_slots) + ")");
      }
    }
    if (src_slots[i] >= 0 && dst_slots[i] >= 0 && src_slots[i] != dst_slots[i]) {
      moves.emplace_back(src_slots[i], dst_slots[i]);
    }
  }
  std::vector<std::int64_t> used;
  for (std::int64_t i = 0; i < n; ++i) {
    if (src_slots[i] >= 0 && dst_slots[i] >= 0) used.push_back(dst_slots[i]);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice != used.end()) {
    throw std::invalid_argument("kv_compact: two rows move to slot " + std::to_string(*twice));
  }
  return moves;
}

}  // namespace

void kv_compact(void* const* caches, std::int64_t num_caches, std::int64_t row_bytes,
                std::int64_t num_slots, const std::int64_t* src_slots,
                const std::int64_t* dst_slots, std::int64_t n) {
  const Moves moves = checked_moves(num_slots, src_slots, dst_slots, n);
  if (moves.empty() || row_bytes <= 0) return;
  const std::size_t bytes = static_cast<std::size_t>(row_bytes);
  const double work = double(num_caches) * double(moves.size()) * double(bytes);
  const int threads = base::threads_for(work, 1 << 18);
  base::parallel_for(num_caches, threads, [&](std::int64_t c, int) {
    char* cache = static_cast<char*>(caches[c]);
    const std::unique_ptr<char[]> rows(new char[moves.size() * bytes]);
    char* row = rows.get();
    for (const auto& move : moves) {
      std::memcpy(row, cache + move.first * row_bytes, bytes);
      row += bytes;
    }
    row = rows.get();
    for (const auto& move : moves) {
      std::memcpy(cache + move.second * row_bytes, row, bytes);
      row += bytes;
    }
  });
}

}  // namespace trtspec
