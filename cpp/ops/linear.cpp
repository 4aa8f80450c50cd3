#include <trtspec/linear.hpp>

#include <memory>

#include "linear_kernel.hpp"

namespace trtspec {

namespace {

// run(x, stride) with the rows as floats.
template <class Run>
void with_floats(const LinearParams& params, const Run& run) {
  if (params.dtype == DType::f32) {
    run(static_cast<const float*>(params.x), params.in_features);
    return;
  }
  // A stride that is no multiple of a page keeps the rows of a block in different cache sets.
  const std::int64_t stride = params.in_features + 16;
  const std::unique_ptr<float[]> x(new float[static_cast<std::size_t>(params.rows * stride)]);
  TRTSPEC_DISPATCH(linear_convert_kernel, params, x.get(), stride);
  run(x.get(), stride);
}

#if defined(TRTSPEC_HAS_AVX512_BF16)
bool has_dot(const LinearParams& params) {
  return params.dtype == DType::bf16 && params.in_features % 2 == 0 &&
         active_isa() == Isa::avx512_bf16;
}
#endif

}  // namespace

void linear(const LinearParams& params) {
  if (params.rows <= 0 || params.out_features <= 0) return;
#if defined(TRTSPEC_HAS_AVX512_BF16)
  if (has_dot(params)) return avx512_bf16::linear_dot(params);
#endif
  with_floats(params, [&](const float* x, std::int64_t stride) {
    TRTSPEC_DISPATCH(linear_kernel, params, x, stride);
  });
}

void linear_int8(const LinearInt8Params& params) {
  if (params.linear.rows <= 0 || params.linear.out_features <= 0) return;
#if defined(TRTSPEC_HAS_AVX512_BF16)
  if (has_dot(params.linear)) return avx512_bf16::linear_int8_dot(params);
#endif
  with_floats(params.linear, [&](const float* x, std::int64_t stride) {
    TRTSPEC_DISPATCH(linear_int8_kernel, params, x, stride);
  });
}

}  // namespace trtspec
