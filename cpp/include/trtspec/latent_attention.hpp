// Multi-head latent attention in its absorbed form: all heads attend to one latent and one rotated
// key a token, over paged caches of both.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>
#include <trtspec/cached_rows.hpp>

namespace trtspec {

struct LatentAttentionParams {
  // All of these have `dtype`; arithmetic is in float.
  const void* q_latent;  // [rows, heads, rank]
  const void* q_rope;    // [rows, heads, rope_dim]
  const void* latent;    // [rows, rank]
  const void* key;       // [rows, rope_dim]
  void* latent_cache;    // [num_blocks, block_size, rank], written
  void* key_cache;       // [num_blocks, block_size, rope_dim], written
  // Null, or [num_blocks, block_size], written: the caches then are int8, times these.
  float* latent_scale = nullptr;
  float* key_scale = nullptr;
  void* out;  // [rows, heads, rank]
  DType dtype;

  std::int64_t heads;
  std::int64_t rank;
  std::int64_t rope_dim;
  float scale;
  CachedRows rows;
};

// Writes each row's latent and key to its slot, then lets it attend: a head's score of a token is
// scale * (q_latent . latent + q_rope . key), its result the weighted sum of latents. What a row
// sees is what it sees in paged_tree_attention without a window. A unit of rows and heads reads a
// token once. Padding rows, and rows that see nothing, give zeros.
//
// A row's result is a function of its query and of the list of tokens it sees, in order: where they
// lie, which other rows there are, and the number of threads do not change a bit of it.
// Throws std::invalid_argument where a table, slot or length does not fit.
void latent_tree_attention(const LatentAttentionParams& params);

}  // namespace trtspec
