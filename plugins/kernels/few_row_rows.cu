#include "few_row_launch.hpp"

namespace trtspec::cuda {

cudaError_t launch_row_weights(const FewRowArgs& args, cudaStream_t stream) {
  return launch_few_rows<RowWeights>(args, stream);
}

}  // namespace trtspec::cuda
