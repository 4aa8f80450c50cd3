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
#if defined(TRTSPEC_HAS_AVX512_BF16)
  if (params.dtype == DType::bf16 && params.in_features % 2 == 0 &&
      active_isa() == Isa::avx512_bf16) {
    avx512_bf16::linear_dot(params);
    return;
  }
#endif
  // A stride that is no multiple of a page keeps the rows of a block in different cache sets.
  const std::int64_t stride = params.in_features + 16;
  const std::unique_ptr<float[]> x(new float[static_cast<std::size_t>(params.rows * stride)]);
  TRTSPEC_DISPATCH(linear_convert_kernel, params, x.get(), stride);
  TRTSPEC_DISPATCH(linear_kernel, params, x.get(), stride);
}

}  // namespace trtspec
