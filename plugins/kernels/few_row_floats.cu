#include "few_row_launch.hpp"

namespace trtspec::cuda {
namespace {

template <class T>
using E4M3Weights = PackedWeights<T, E4M3>;
template <class T>
using E2M1Weights = PackedWeights<T, E2M1>;

}  // namespace

cudaError_t launch_e4m3_weights(const FewRowArgs& args, cudaStream_t stream) {
  return launch_few_rows<E4M3Weights>(args, stream);
}

cudaError_t launch_e2m1_weights(const FewRowArgs& args, cudaStream_t stream) {
  return launch_few_rows<E2M1Weights>(args, stream);
}

cudaError_t dequantise_e4m3(const FewRowParams& p, cudaStream_t stream) {
  return launch_dequantise<E4M3Weights>(p, stream);
}

cudaError_t dequantise_e2m1(const FewRowParams& p, cudaStream_t stream) {
  return launch_dequantise<E2M1Weights>(p, stream);
}

}  // namespace trtspec::cuda
