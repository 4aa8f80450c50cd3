#include <trtspec/linear.hpp>

#include <memory>

#include "linear_kernel.hpp"

namespace trtspec {

void linear(const LinearParams& params) {
  if (params.rows <= 0 || params.out_features <= 0) return;
  if (params.dtype == DType::f32) {
    TRTSPEC_DISPATCH(linear_kernel, params, static_cast<const float*>(params.x),
                     params.in_features);
    return;
  }
  // A stride that is no multiple of a page keeps the rows of a block in different cache sets.
  const std::int64_t stride = params.in_features + 16;
  const std::unique_ptr<float[]> x(new float[static_cast<std::size_t>(params.rows * stride)]);
  TRTSPEC_DISPATCH(linear_convert_kernel, params, x.get(), stride);
  TRTSPEC_DISPATCH(linear_kernel, params, x.get(), stride);
}

}  // namespace trtspec
