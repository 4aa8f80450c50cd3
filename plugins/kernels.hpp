// The CUDA kernels, as their callers see them: raw device pointers, no framework's headers.
//
// Parameters are those of the CPU kernels (cpp/include/trtspec), with every pointer on the device
// unless it says otherwise. A launcher enqueues on `stream` and returns at once; the cudaError_t it
// returns is that of the launch, or cudaErrorInvalidValue for sizes beyond the limits given here.
// Values that the CPU kernels check (slots, tables, lengths, parents) are not checked here: the
// caller has done it. None of the launchers allocates or synchronises, and grids follow from sizes
// alone, so all may be captured into a CUDA graph, and a captured launch is right for any content
// of its buffers. Empty calls (no rows, no requests) launch nothing.
//
// Where a launcher takes a workspace, it is device memory aligned to 256 bytes, of the size that
// the function of the same name says; nothing in it outlives the call.
#pragma once

#include <cuda_runtime_api.h>
#include <trtspec/attention.hpp>
#include <trtspec/build_tree.hpp>
#include <trtspec/causal_conv.hpp>
#include <trtspec/gated_delta.hpp>
#include <trtspec/logits_mask.hpp>
#include <trtspec/mamba2.hpp>
#include <trtspec/resident_step.hpp>
#include <trtspec/sampling.hpp>

#include <cstddef>
#include <cstdint>

namespace trtspec::cuda {

// -- attention --------------------------------------------------------------------------------

// The contract of trtspec::paged_tree_attention, for head sizes up to 256, without sinks; caches of
// 8 bits have the CPU's bits, and are read as they are. `params` itself lies on the host. Tensor
// cores serve bf16 and f16 with head sizes that are a multiple of 8 up to 128, if a request has
// more than a few (row, head)s on average; scores and sums are float either way.
//
// The CPU's promise about bits is weaker here: a row's result depends on the query, the keys it
// sees and the sizes of the call (which decide how keys are divided among blocks), and two layouts
// of the same keys agree to rounding. Results of one launch repeated are equal.
//
// Bytes of scratch memory; depends on the sizes and on how the pointers are aligned, not on what
// they hold, and is not monotone in the sizes.
std::size_t paged_tree_attention_workspace(const AttentionParams& params);
cudaError_t paged_tree_attention(const AttentionParams& params, void* workspace,
                                 cudaStream_t stream);

// How rows turn before they are written and attend (rotary position embedding).
struct RotationParams {
  const float* cos;  // [rows, size / 2]: of the pairs of elements that turn, at the rows' positions
  const float* sin;
  std::int64_t size;  // elements of a head that turn, the first ones: even, at most head_dim
  bool interleaved;   // element 2 i is paired with 2 i + 1, not i with i + size / 2
};

// paged_tree_attention of queries and keys that are turned first, as trtspec/models/rope.py does it:
// in float, and rounded once. One kernel turns and writes; the bits are those of turning the rows and
// paged_tree_attention behind. k and v may be null: queries turn.
std::size_t rotated_tree_attention_workspace(const AttentionParams& params);
cudaError_t rotated_tree_attention(const AttentionParams& params, const RotationParams& rotation,
                                   void* workspace, cudaStream_t stream);

// To measure one beside the other: the tiles of queries that serve the calls of this process from
// now on, where tensor cores do; `chosen`: as the launcher finds best, which does not know `prefix`
// yet. Not while calls are made.
//
// With `prefix`, and at most 64 query heads a kv head (others are served as chosen), queries of a
// request read its keys together, up to 96 at a time, and the promise is the CPU's: a row's result
// is a function of its query and of the list of keys it sees, in order. A token has the same bits as a
// decode step, in a tree and in a prompt's chunk, in any batch, whatever the others are and however
// wide the tables. Under a sliding window the cache position of the first key that it sees counts as
// well. Kernels take one row of a product on tensor cores to be the same in every row of a tile.
enum class AttentionTiles { chosen, narrow, wide, prefix };
void force_attention_tiles(AttentionTiles tiles);

// What an engine with a slot cache is told about visibility, instead of packed ancestors.
enum class MaskKind { boolean, f32, bf16, f16 };  // true / 0 = seen, false / -inf = hidden

struct TreeMaskParams {
  void* out;  // [requests, 1, width, length], elements as `kind` says (boolean: one byte)
  MaskKind kind;
  std::int64_t requests;    // B
  std::int64_t rows;        // T
  std::int64_t width;       // rows of a request in `out`; further rows of a request are left out
  std::int64_t length;      // cache positions
  std::int64_t mask_words;  // W
  const std::int64_t* positions;     // [T]; read with a sliding window only
  const std::int64_t* slot_mapping;  // [T]; -1: padding. Null: no row is padding
  const std::int32_t* query_start;   // [B + 1]
  const std::int32_t* context_lens;  // [B]
  const bool* is_tree;               // [B]
  const std::int64_t* tree_mask;     // [T, W]
  std::int64_t sliding_window;       // 0: none
};

// Row i of request b sees what paged_tree_attention lets it see. Rows that see nothing (padding,
// and those that a request does not have) see position 0, so that a softmax over them is finite.
cudaError_t tree_mask(const TreeMaskParams& params, cudaStream_t stream);

// -- products -----------------------------------------------------------------------------------

inline constexpr std::int64_t kFewRows = 64;  // the most rows of few_row_linear

// How the values of a weight are kept: as floats of `dtype`, in rows [N, K]; or packed, integers of
// 8 or 4 bits, FP8 (E4M3) and FP4 (E2M1), as trtspec/ops/few_row_linear.py lays them out.
enum class WeightValues { rows, int8, int4, e4m3, e2m1 };

struct FewRowParams {
  const void* x;       // [rows, in_features], of `dtype`, aligned to 16 bytes
  const void* weight;  // aligned to 16 bytes
  // Of packed values, for groups of inputs: [ceil(N / 16), groups, 16], aligned to 16 bytes. A
  // weight is (value - zero) * scale + offset; zeros or offsets, or both, are null.
  const void* scales;  // of scale_dtype
  const std::int8_t* zeros;
  const void* offsets;        // of scale_dtype
  const void* bias;           // [out_features], of `dtype`, or null
  const void* residual;       // as out, or null
  void* out;                  // [rows, out_features], with swiglu half of them, of out_dtype
  std::int64_t rows;          // 1 to 64
  std::int64_t in_features;   // K, a multiple of 8
  std::int64_t out_features;  // N
  std::int64_t group_size;    // 0 (one group), 16, 32, 64, 128 or 256
  WeightValues values;
  DType dtype;  // bf16 or f16
  DType out_dtype;
  DType scale_dtype;
  // Of each 32 outputs the last 16 are scaled by the SiLU of the first, which are their gates. N is
  // a multiple of 32.
  bool swiglu;
};

// out = residual + (x W^T + bias), rounded before the sum and behind it. Sums are float, over steps
// of 16 inputs in their order; several blocks may share the inputs, in parts that follow from N and
// K alone, whose sums are added in their order. So the bits of a row depend on its rows of x and of
// the residual and on W; not on how many rows there are, unlike those of a library's product.
std::size_t few_row_linear_workspace(const FewRowParams& params);
cudaError_t few_row_linear(const FewRowParams& params, void* workspace, cudaStream_t stream);

// The weight that packed values stand for, [N, K] in `params.dtype`, rounded once, into params.out:
// for the products of more rows. Of params only what concerns weights counts; K may be any.
cudaError_t few_row_dequantise(const FewRowParams& params, cudaStream_t stream);

// -- states -------------------------------------------------------------------------------------

// The contracts of trtspec::causal_conv, gated_delta and mamba2; `params` itself lies on the host,
// with the pointers of its walk on the device. Every row of a tree walks its own path, so a row has
// the bits of its path as a chain; they agree with the CPU's to rounding. kept_rows is not checked.
cudaError_t causal_conv(const CausalConvParams& params, cudaStream_t stream);
cudaError_t gated_delta(const GatedDeltaParams& params, cudaStream_t stream);
cudaError_t mamba2(const Mamba2Params& params, cudaStream_t stream);

// -- acceptance and the cache -------------------------------------------------------------------

struct AcceptParams {
  const std::int64_t* sampled;    // [R]
  const std::int64_t* tokens;     // [R]
  const std::int32_t* parents;    // [R]
  const std::int32_t* row_start;  // [B + 1]
  std::int64_t requests;          // B
  std::int64_t width;             // at least the most rows of a request

  std::int32_t* accepted_rows;  // [B, width], as trtspec::accept; padded with -1
  std::int32_t* num_emitted;    // [B]; 0 for a malformed request (see trtspec::accept)

  // May be null: the tokens emitted, [B, width], padded with -1.
  std::int64_t* emitted;
  // May be null, both or neither: what kv_compact is told, [B, width]. The i-th accepted row moves
  // from the slot of cache position context_lens[b] + its row to that of context_lens[b] + i; -1
  // where nothing moves. The rest is read only if they are given.
  std::int64_t* src_slots;
  std::int64_t* dst_slots;
  const std::int32_t* context_lens;  // [B]
  const std::int32_t* block_tables;  // [B, table_width]
  std::int64_t table_width;
  std::int64_t block_size;

  const std::int32_t* forced;  // [B], as trtspec::accept; may be null
};

cudaError_t accept(const AcceptParams& params, cudaStream_t stream);

// Pairs that one kv_compact can take. Pairs of different requests may go in calls of their own.
inline constexpr std::int64_t kMaxCompactPairs = 6144;

// The contract of trtspec::kv_compact. The array `caches` lies on the host (it travels with the
// launch, 256 caches in each); what it points to, and the slots, lie on the device. A destination
// used twice is not noticed.
cudaError_t kv_compact(void* const* caches, std::int64_t num_caches, std::int64_t row_bytes,
                       const std::int64_t* src_slots, const std::int64_t* dst_slots, std::int64_t n,
                       cudaStream_t stream);

// -- sampling -----------------------------------------------------------------------------------

// The contracts of trtspec/sampling.hpp for vocabularies below 2^22; the arrays in `params` lie on
// the device. ids are those of the CPU, bit for bit; so are logprobs but for the order in which
// the total of a row is summed, in float64.
std::size_t sample_workspace(std::int64_t rows, std::int64_t vocab);
cudaError_t sample(const float* logits, std::int64_t rows, std::int64_t vocab,
                   const SamplingRows& params, std::int64_t* ids, void* workspace,
                   cudaStream_t stream);

// The contract of trtspec::mask_logits; the arrays in `mask` lie on the device. bias_rows are not
// checked. At most 65535 rows.
cudaError_t mask_logits(float* logits, std::int64_t rows, std::int64_t vocab,
                        const LogitsMask& mask, cudaStream_t stream);

inline constexpr std::int64_t kMaxCandidates = 1024;  // the greatest k

std::size_t draft_candidates_workspace(std::int64_t rows, std::int64_t vocab, std::int64_t k);
cudaError_t draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                             const SamplingRows& params, const std::int64_t* token_map,
                             std::int64_t k, std::int64_t* ids, float* logprobs, void* workspace,
                             cudaStream_t stream);

// -- growing a tree -----------------------------------------------------------------------------

// The contracts of trtspec/build_tree.hpp, a block of threads for each request; the structures lie
// on the host. Tokens, parents and scores are those of the CPU, bit for bit. A choice takes time
// quadratic in the candidates: pools are small.
cudaError_t expand_tree(const TreePool& pool, const TreeChildren& children, const TreeBeam& beam,
                        cudaStream_t stream);
cudaError_t keep_best(const TreePool& pool, const TreeChildren& children, const KeptTree& tree,
                      cudaStream_t stream);

// `candidates`: of all depths together.
std::size_t marginal_trees_workspace(const MarginalTrees& params, std::int64_t candidates);
cudaError_t marginal_trees(const MarginalTrees& params, std::int64_t candidates, void* workspace,
                           cudaStream_t stream);

// -- a step of requests that the device keeps -----------------------------------------------------

// The contracts of trtspec/resident_step.hpp, one launch each. Rows and logits beyond the sizes of
// the call are not written; that they fit is not checked. Walks are not forced.
cudaError_t pack_verify(const PackVerifyParams& params, cudaStream_t stream);
cudaError_t pack_rollout(const PackRolloutParams& params, cudaStream_t stream);
cudaError_t advance(const AdvanceParams& params, cudaStream_t stream);

}  // namespace trtspec::cuda
