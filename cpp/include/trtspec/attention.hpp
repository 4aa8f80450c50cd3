// Attention over a paged K/V cache for packed rows of several requests: prefill chunks, single
// decode rows and token trees in one call.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

namespace trtspec {

struct AttentionParams {
  // All of these have `dtype`; arithmetic is in float. Rows of q, k, v may lie further apart than
  // their heads take (views of a fused projection): strides are in elements.
  const void* q;  // [rows, heads, head_dim]
  const void* k;  // [rows, kv_heads, head_dim]; k and v null: the caches hold the rows' already
  const void* v;  // [rows, kv_heads, head_dim]
  std::int64_t q_stride;
  std::int64_t k_stride;
  std::int64_t v_stride;
  void* k_cache;  // [num_blocks, block_size, kv_heads, head_dim], written
  void* v_cache;
  void* out;  // [rows, heads, head_dim]
  DType dtype;

  std::int64_t rows;      // T
  std::int64_t requests;  // B
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t num_blocks;
  std::int64_t block_size;
  std::int64_t table_width;  // M
  std::int64_t mask_words;   // W

  const std::int64_t* positions;     // [T]
  const std::int64_t* slot_mapping;  // [T]; -1: padding
  const std::int32_t* block_tables;  // [B, M]
  const std::int32_t* query_start;   // [B + 1]
  const std::int32_t* context_lens;  // [B]
  const bool* is_tree;               // [B]
  const std::int64_t* tree_mask;     // [T, W], bit j % 64 of word j / 64
  float scale;
  std::int64_t sliding_window;   // 0: none
  float soft_cap = 0;            // scores s become cap * tanh(s / cap); 0: they stay
  const float* sinks = nullptr;  // [heads], or null: scores that take part and give nothing
  // Null, or [num_blocks, block_size, kv_heads], written: the caches then are int8, times these.
  float* k_scale = nullptr;
  float* v_scale = nullptr;
};

// Writes the k and v rows, if there are any, to their slots, then lets every row attend to the keys
// that it sees: committed cache positions p < context_lens[b], and positions context_lens[b] + j
// with j <= the row's index in its request (causal) or bit j of its tree mask set. A sliding window
// hides committed and causal keys with positions[t] - p >= sliding_window. Padding rows give zeros.
//
// A row's result is a function of its query and of the list of keys it sees, in order: where keys
// lie, which other rows there are, and the number of threads do not change a bit of it.
// Throws std::invalid_argument where a table, slot or length does not fit.
void paged_tree_attention(const AttentionParams& params);

}  // namespace trtspec
