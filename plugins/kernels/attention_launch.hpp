// What the launcher of attention puts together: the writing of rows, and three families of kernels.
#pragma once

#include <kernels.hpp>

#include "attention.cuh"

namespace trtspec::cuda {

inline bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// K and V of the rows, if there are any, go to their slots, and the output of padding rows is zeros.
cudaError_t launch_write(const AttentionParams& params, cudaStream_t stream);
// The same of rows that turn; turned queries go to `queries` [rows, heads, head_dim], those of
// padding rows do not.
cudaError_t launch_write_heads(const AttentionParams& params, const RotationParams& rotation,
                               void* queries, cudaStream_t stream);

// Tiles of 16 queries, or of 64 with `wide`; bf16 and f16 with a head size up to 128 that is a
// multiple of 8, caches aligned to 16 bytes and queries to 4.
cudaError_t launch_tensor_attention(const AttentionArgs& args, bool wide, cudaStream_t stream);

// Tiles of 4 queries; any head size up to 256. `vectors`: head sizes and caches allow reading 16
// bytes at a time, and the head size is at most 128.
cudaError_t launch_vector_attention(const AttentionArgs& args, bool vectors, cudaStream_t stream);

// How prefix attention goes about a call; nothing of it changes a bit of what comes out.
struct PrefixPlan {
  int row_warps;  // of a block
  int parts;      // kept of a (row, head): args.splits
  bool in_order;  // a block goes through all splits of the keys
};

PrefixPlan plan_prefix(const AttentionParams& params);

inline constexpr std::int64_t kMostPrefixGroup = 64;

// What launch_tensor_attention serves, with at most kMostPrefixGroup query heads a kv head. It writes the output
// itself, from parts that it keeps in any case.
cudaError_t launch_prefix_attention(const AttentionArgs& args, const PrefixPlan& plan,
                                    cudaStream_t stream);

}  // namespace trtspec::cuda
