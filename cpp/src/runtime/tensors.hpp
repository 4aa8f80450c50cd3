// Tensors made of vectors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trtspec {

// A copy, [n].
template <class T>
at::Tensor to_tensor(const std::vector<T>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())},
                                at::dtype(c10::CppTypeToScalarType<T>::value));
  std::copy(values.begin(), values.end(), tensor.template mutable_data_ptr<T>());
  return tensor;
}

}  // namespace trtspec
