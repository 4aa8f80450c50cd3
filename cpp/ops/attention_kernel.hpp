#pragma once
#include <trtspec/attention.hpp>

#include "isa.hpp"

namespace trtspec {

constexpr std::int64_t kKeyTile = 64;  // keys looked at together; their visibility is one word

// Keys of a row whose weights have a maximum and a sum of their own: those at its positions
// [256 i, 256 i + 256). It depends on the row alone, so pieces may be attended to side by side.
constexpr std::int64_t kPieceKeys = 256;

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

// Rows of one request that are attended to together, for some of the kv heads and of the pieces.
struct AttentionUnit {
  std::int64_t request;
  std::int64_t first_kv_head;
  std::int64_t kv_heads;
  std::int64_t first_row;  // index in the packed rows
  std::int64_t rows;
  std::int64_t begin;       // least position that a row sees
  std::int64_t end;         // one more than the greatest
  std::int64_t first_view;  // index of what its first row sees of these pieces
  std::int64_t shared;      // index of what it has a part in, or -1: it has all pieces
};

// What several units make, each of some pieces: [pieces][kv head of the units, row, head of a kv
// head] of AttentionPart, in the order of AttentionUnit's rows, and of as many sums of values.
struct SharedRows {
  std::int64_t first_kv_head;
  std::int64_t kv_heads;
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t first_piece;
  std::int64_t pieces;
  std::int64_t first_part;
};

// Of a piece: the greatest score, and the sum of e^(score - maximum); 0: no keys.
struct AttentionPart {
  float maximum;
  float total;
};

// Where the parts of shared rows are, by SharedRows::first_part; sums [padded_dim] each.
struct AttentionParts {
  const SharedRows* shared;
  std::int64_t count;
  AttentionPart* parts;
  float* sums;
};

// Where a unit's intermediate results lie in a thread's scratch memory, in floats.
struct AttentionScratch {
  std::int64_t score_stride;  // floats between the scores of two (row, head)s
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t values;
  std::int64_t tile_scores;
  std::int64_t sums;
  std::int64_t results;
  std::int64_t scores;
  std::int64_t size;  // floats for one thread
};

constexpr std::int64_t padded_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

TRTSPEC_DECLARE_KERNEL(void, attention_kernel,
                       (const AttentionParams& params, const AttentionRow* rows,
                        const AttentionUnit* units, std::int64_t num_units,
                        const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                        int threads))

// Writes the rows' K and V into caches of 8 bits.
TRTSPEC_DECLARE_KERNEL(void, attention_write_kernel, (const AttentionParams& params, int threads))

// The results of shared rows, once all their parts are there.
TRTSPEC_DECLARE_KERNEL(void, attention_join_kernel,
                       (const AttentionParams& params, const AttentionParts& parts))

// The same of bfloat16 by the processor's own dot product, for heads in multiples of 64 bytes of the
// caches. Only where active_isa() is avx512_bf16 or better.
namespace avx512_bf16 {
void attention_dot(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                   int threads);
}

// The same by its products of tiles. Only where active_isa() is amx.
namespace amx {
void attention_amx(const AttentionParams& params, const AttentionRow* rows,
                   const AttentionUnit* units, std::int64_t num_units,
                   const AttentionScratch& layout, const AttentionParts& parts, float* scratch,
                   int threads);
}

}  // namespace trtspec
