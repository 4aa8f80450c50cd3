// Tensors of host memory for the small values of a step.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

namespace trtspec {

// A new one, its values not yet written. Past torch's dispatcher, which takes longer than what a
// step writes to it.
inline at::Tensor host_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

// A new one of these values.
template <class T>
at::Tensor host_copy(std::span<const T> values) {
  at::Tensor tensor = host_tensor({std::ssize(values)}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
  return tensor;
}

template <class T>
at::Tensor host_copy(const std::vector<T>& values) {
  return host_copy(std::span(values));
}

}  // namespace trtspec
