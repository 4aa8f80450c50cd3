// What the bindings share: torch's types in the words of the kernels.
#pragma once
#include <ATen/core/Tensor.h>
#include <trtspec/dtype.hpp>

namespace trtspec {

inline DType kernel_dtype(const char* op, const char* name, at::ScalarType type) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op, ": ", name,
              " must be float32, bfloat16 or float16, got ", type);
  return type == at::kFloat ? DType::f32 : type == at::kBFloat16 ? DType::bf16 : DType::f16;
}

inline void check_dim(const char* op, const char* name, const at::Tensor& tensor, int64_t dim) {
  TORCH_CHECK(tensor.dim() == dim, op, ": ", name, " must have ", dim, " dimensions, got shape ",
              tensor.sizes());
}

inline void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                        at::IntArrayRef shape) {
  TORCH_CHECK(tensor.sizes() == shape, op, ": ", name, " must have shape ", shape, ", got ",
              tensor.sizes());
}

inline void check_dtype(const char* op, const char* name, const at::Tensor& tensor,
                        at::ScalarType type) {
  TORCH_CHECK(tensor.scalar_type() == type, op, ": ", name, " must be ", type, ", got ",
              tensor.scalar_type());
}

// The kernels follow raw pointers: a tensor on another device would be read where it is not.
inline void check_device(const char* op, const char* name, const at::Tensor& tensor,
                         const at::Tensor& like) {
  TORCH_CHECK(tensor.device() == like.device(), op, ": ", name, " must be on ", like.device(),
              " like the others, got ", tensor.device());
}

}  // namespace trtspec
