#include "attention_prefix.cuh"

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

static_assert(kMostPrefixGroup == 16 * kFinishWarps);

template <class T, class C, int kDim>
cudaError_t launch_dim(const AttentionArgs& args, const PrefixPlan& plan, cudaStream_t stream) {
  const AttentionParams& p = args.p;
  const auto kv_heads = static_cast<unsigned>(p.kv_heads);
  const dim3 blocks(most_tiles(p, 16 * plan.row_warps), kv_heads,
                    plan.in_order ? 1 : static_cast<unsigned>(plan.parts));
  const cudaError_t error =
      launch(prefix_attention<T, C, kDim>, blocks, static_cast<unsigned>(plan.row_warps * kLanes),
             kPrefixStages * sizeof(Stage<T, C, kDim>), stream, args, plan.in_order);
  if (error != cudaSuccess) return error;
  return launch(finish_rows<T, C, kDim>, dim3(static_cast<unsigned>(p.rows), kv_heads),
                kFinishThreads, kTailStages * sizeof(Stage<T, C, kDim>), stream, args,
                plan.in_order);
}

template <class T, class C>
cudaError_t launch_caches(const AttentionArgs& args, const PrefixPlan& plan, cudaStream_t stream) {
  if (args.p.head_dim <= 64) return launch_dim<T, C, 64>(args, plan, stream);
  if (args.p.head_dim <= 96) return launch_dim<T, C, 96>(args, plan, stream);
  return launch_dim<T, C, 128>(args, plan, stream);
}

template <class T>
cudaError_t launch_type(const AttentionArgs& args, const PrefixPlan& plan, cudaStream_t stream) {
  return args.p.k_scale == nullptr ? launch_caches<T, T>(args, plan, stream)
                                   : launch_caches<T, std::int8_t>(args, plan, stream);
}

}  // namespace

PrefixPlan plan_prefix(const AttentionParams& p) {
  // As many blocks as a large GPU has multiprocessors: where queries and heads alone make so many,
  // keys need not be divided, and no parts be kept.
  constexpr std::int64_t kEnoughBlocks = 132;
  // Of parts. Beyond, the memory is dearer than the multiprocessors that have nothing to do.
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  const std::int64_t queries = p.rows * (p.heads / p.kv_heads);
  const std::int64_t warps =
      smaller<std::int64_t>(divide_up(queries, 16 * p.requests), kMostRowWarps);
  const std::int64_t tiles = larger(p.requests, divide_up(queries, 16 * warps));
  const std::int64_t longest = larger<std::int64_t>(p.table_width * p.block_size, 1);
  const std::int64_t splits = split_of(static_cast<int>(longest - 1)) + 1;
  const std::int64_t bytes =
      p.rows * p.heads * splits * (p.head_dim + 2) * static_cast<std::int64_t>(sizeof(float));
  const bool in_order = tiles * p.kv_heads >= kEnoughBlocks || bytes > kMostBytes;
  return {static_cast<int>(warps), in_order ? kPartsInOrder : static_cast<int>(splits), in_order};
}

cudaError_t launch_prefix_attention(const AttentionArgs& args, const PrefixPlan& plan,
                                    cudaStream_t stream) {
  return args.p.dtype == DType::bf16 ? launch_type<bf16>(args, plan, stream)
                                     : launch_type<f16>(args, plan, stream);
}

}  // namespace trtspec::cuda
