#include "few_row_launch.hpp"

namespace trtspec::cuda {
namespace {

template <class T>
using Int8Weights = PackedWeights<T, Int8>;
template <class T>
using Int4Weights = PackedWeights<T, Int4>;

}  // namespace

cudaError_t launch_int8_weights(const FewRowArgs& args, cudaStream_t stream) {
  return launch_few_rows<Int8Weights>(args, stream);
}

cudaError_t launch_int4_weights(const FewRowArgs& args, cudaStream_t stream) {
  return launch_few_rows<Int4Weights>(args, stream);
}

cudaError_t dequantise_int8(const FewRowParams& p, cudaStream_t stream) {
  return launch_dequantise<Int8Weights>(p, stream);
}

cudaError_t dequantise_int4(const FewRowParams& p, cudaStream_t stream) {
  return launch_dequantise<Int4Weights>(p, stream);
}

}  // namespace trtspec::cuda
