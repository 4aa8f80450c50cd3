// The rows of several requests over a paged cache, as every op over such rows is told of them.
#pragma once
#include <cstdint>

namespace trtspec {

struct CachedRows {
  std::int64_t rows;         // T
  std::int64_t requests;     // B
  std::int64_t num_blocks;   // of the cache
  std::int64_t block_size;   // in tokens
  std::int64_t table_width;  // M
  std::int64_t mask_words;   // W

  const std::int64_t* slot_mapping;  // [T]; -1: padding
  const std::int32_t* block_tables;  // [B, M]
  const std::int32_t* query_start;   // [B + 1]
  const std::int32_t* context_lens;  // [B]
  const bool* is_tree;               // [B]
  const std::int64_t* tree_mask;     // [T, W], bit j % 64 of word j / 64
};

}  // namespace trtspec
