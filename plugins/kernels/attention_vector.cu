#include "attention_vector.cuh"

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

template <class T, class C, int kDim>
cudaError_t launch_slice(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(most_tiles(args.p, kVectorQueries), static_cast<unsigned>(args.p.kv_heads),
                  static_cast<unsigned>(args.splits));
  const std::size_t shared =
      sizeof(float) * kVectorWarps * kVectorQueries * static_cast<std::size_t>(args.p.head_dim);
  return launch(vector_attention<T, C, kDim>, grid, kVectorThreads, shared, stream, args);
}

template <class T>
cudaError_t launch_any(const AttentionArgs& args, cudaStream_t stream) {
  return args.p.k_scale == nullptr ? launch_slice<T, T, 0>(args, stream)
                                   : launch_slice<T, std::int8_t, 0>(args, stream);
}

}  // namespace

cudaError_t launch_vector_attention(const AttentionArgs& args, bool vectors, cudaStream_t stream) {
  switch (args.p.dtype) {
    case DType::f32:
      if (!vectors) return launch_any<float>(args, stream);
      return args.p.head_dim <= 64 ? launch_slice<float, float, 64>(args, stream)
                                   : launch_slice<float, float, 128>(args, stream);
    case DType::bf16: return launch_any<bf16>(args, stream);
    case DType::f16: return launch_any<f16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
