#pragma once
#include <trtspec/latent_attention.hpp>

#include "isa.hpp"

namespace trtspec {

constexpr std::int64_t kLatentTile = 64;    // tokens looked at together
constexpr std::int64_t kLatentHeads = 128;  // (row, head)s of a unit, unless a row has more

// Rows of one request that attend together, with some of their heads.
struct LatentUnit {
  std::int64_t request;
  std::int64_t first_row;  // index in the packed rows
  std::int64_t rows;
  std::int64_t first_head;
  std::int64_t heads;
  std::int64_t shared;  // positions that all its rows see, in whole tiles
};

// Where a unit's intermediate results lie in a thread's scratch memory, in floats.
struct LatentScratch {
  std::int64_t query_stride;  // between (row, head)s
  std::int64_t value_stride;
  std::int64_t queries;  // [row, head][query_stride]
  std::int64_t keys;     // [element][64], or what the kernel keeps there
  std::int64_t values;   // [64][value_stride]
  std::int64_t scores;   // [row, head][64]
  std::int64_t sums;     // [row, head][value_stride]
  std::int64_t lanes;    // [row, head][16]
  std::int64_t maxima;   // [row, head]
  std::int64_t size;     // floats for one thread
};

// Writes the rows' latents and keys into caches of 8 bits.
TRTSPEC_DECLARE_KERNEL(void, latent_write_kernel, (const LatentAttentionParams& params))

TRTSPEC_DECLARE_KERNEL(void, latent_attention_kernel,
                       (const LatentAttentionParams& params, const LatentUnit* units,
                        std::int64_t num_units, const LatentScratch& layout, float* scratch,
                        int threads))

// The same of bfloat16 by the processor's own dot product, for a rank and a rope_dim in multiples
// of 32. Only where active_isa() is avx512_bf16 or better.
namespace avx512_bf16 {
void latent_attention_dot(const LatentAttentionParams& params, const LatentUnit* units,
                          std::int64_t num_units, const LatentScratch& layout, float* scratch,
                          int threads);
}

}  // namespace trtspec
