#include "attention_tensor.cuh"

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

template <class T, class C, int kDim, int kRowWarps>
cudaError_t launch_tile(const AttentionArgs& args, cudaStream_t stream) {
  using Tile = TensorTile<T, C, kDim, kRowWarps>;
  const dim3 grid(most_tiles(args.p, Tile::kQueries), static_cast<unsigned>(args.p.kv_heads),
                  static_cast<unsigned>(args.splits));
  return launch(tensor_attention<T, C, kDim, kRowWarps>, grid, kTensorThreads, Tile::kSharedBytes,
                stream, args);
}

template <class T, class C, int kDim>
cudaError_t launch_dim(const AttentionArgs& args, bool wide, cudaStream_t stream) {
  return wide ? launch_tile<T, C, kDim, 4>(args, stream) : launch_tile<T, C, kDim, 1>(args, stream);
}

template <class T, class C>
cudaError_t launch_caches(const AttentionArgs& args, bool wide, cudaStream_t stream) {
  if (args.p.head_dim <= 64) return launch_dim<T, C, 64>(args, wide, stream);
  if (args.p.head_dim <= 96) return launch_dim<T, C, 96>(args, wide, stream);
  return launch_dim<T, C, 128>(args, wide, stream);
}

template <class T>
cudaError_t launch_type(const AttentionArgs& args, bool wide, cudaStream_t stream) {
  return args.p.k_scale == nullptr ? launch_caches<T, T>(args, wide, stream)
                                   : launch_caches<T, std::int8_t>(args, wide, stream);
}

}  // namespace

cudaError_t launch_tensor_attention(const AttentionArgs& args, bool wide, cudaStream_t stream) {
  return args.p.dtype == DType::bf16 ? launch_type<bf16>(args, wide, stream)
                                     : launch_type<f16>(args, wide, stream);
}

}  // namespace trtspec::cuda
