// Which rows of a call the states of requests take in, and whose state each row reads, as every op
// over such states is told of them.
#pragma once
#include <cstdint>

namespace trtspec {

// A request's state takes in its certain rows: all of them, or of a tree the root, its first row.
// The other rows of a tree read a state that has taken in their own path as well; it is dropped.
struct StateWalk {
  std::int64_t rows;        // T
  std::int64_t requests;    // B
  std::int64_t num_states;  // S
  std::int64_t kept_rows;   // rows of the buffer for those that may be rejected
  std::int64_t mask_words;  // W

  const std::int32_t* state_slots;   // [B], each state once; -1: padding
  const std::int32_t* query_start;   // [B + 1]
  const std::int32_t* context_lens;  // [B]; 0: the state is of zeros, whatever lies in its slot
  const bool* is_tree;               // [B]
  const std::int64_t* tree_mask;     // [T, W], bit j % 64 of word j / 64: row j of the request
};

}  // namespace trtspec
