// RowArrays: where the rows of an engine's call are written.
#pragma once

#include <cstdint>

namespace trtspec {

// The fixed sizes of an engine's inputs. is_slots: a sequence has one slot of tokens_per_block
// positions in place of blocks.
struct CacheLayout {
  std::int64_t tokens_per_block;
  std::int64_t blocks_per_sequence;
  std::int64_t mask_words;
  bool is_slots = false;
};

// The inputs of a call that are written row by row (trtspec/backends/inputs.py): T rows, B requests,
// R rows whose logits are wanted.
struct RowArrays {
  std::int64_t* input_ids;     // [T]
  std::int64_t* positions;     // [T]
  std::int64_t* slot_mapping;  // [T]
  std::int32_t* block_tables;  // [B, M]; -1 behind a request's blocks
  std::int32_t* query_start;   // [B + 1]
  std::int32_t* context_lens;  // [B]
  bool* is_tree;               // [B]
  std::int64_t* tree_mask;     // [T, W]
  std::int64_t* logits_rows;   // [R]; null if none are wanted
  std::int32_t* adapters;      // [T]; may be null
};

}  // namespace trtspec
