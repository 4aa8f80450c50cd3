#pragma once
#include <trtspec/attention.hpp>

#include "isa.hpp"

namespace trtspec {

constexpr std::int64_t kKeyTile = 64;  // keys looked at together; their visibility is one word

constexpr std::int64_t kMaxUnitRows = 64;
constexpr std::int64_t kMaxUnitHeads = 1024;  // (row, head)s

// The keys that a row sees: cache positions [begin, end) and, for a tree row, end + j for every set
// bit j of `mask`.
struct AttentionRow {
  std::int64_t begin;
  std::int64_t end;
  const std::int64_t* mask;  // null: none
  std::int64_t keys;         // in all
};

// Rows of one request that are attended to together, for some of the kv heads.
struct AttentionUnit {
  std::int64_t request;
  std::int64_t first_kv_head;
  std::int64_t kv_heads;
  std::int64_t first_row;  // index in the packed rows
  std::int64_t rows;
  std::int64_t begin;  // least position that a row sees
  std::int64_t end;    // one more than the greatest
};

// Where a unit's intermediate results lie in a thread's scratch memory, in floats.
struct AttentionScratch {
  std::int64_t score_stride;  // floats between the scores of two (row, head)s
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t values;
  std::int64_t tile_scores;
  std::int64_t sums;
  std::int64_t scores;
  std::int64_t size;  // floats for one thread
};

constexpr std::int64_t padded_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

TRTSPEC_DECLARE_KERNEL(void, attention_kernel,
                       (const AttentionParams& params, const AttentionRow* rows,
                        const AttentionUnit* units, std::int64_t num_units,
                        const AttentionScratch& layout, float* scratch, int threads))

// The same of bfloat16 by the processor's own dot product, for a head_dim in multiples of 32. Only
// where active_isa() is avx512_bf16 or better.
namespace avx512_bf16 {
void attention_dot(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, float* scratch, int threads);
}

// The same by its products of tiles. Only where active_isa() is amx.
namespace amx {
void attention_amx(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, float* scratch, int threads);
}

}  // namespace trtspec
