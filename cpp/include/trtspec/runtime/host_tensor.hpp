// Tensors of host memory for the small values of a step.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

namespace trtspec {

// A new one, its values not yet written. Past torch's dispatcher, which takes longer than what a
// step writes to it.
inline at::Tensor host_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

}  // namespace trtspec
