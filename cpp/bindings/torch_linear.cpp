#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/linear.hpp>

#include "checks.hpp"

namespace {

using namespace trtspec;

// The checked arguments, which the params of the call point into.
struct LinearCall {
  at::Tensor x, packed, bias, out;
  LinearParams params;

  LinearCall(const char* op, const at::Tensor& input, const at::Tensor& weights,
             const std::optional<at::Tensor>& biases, int64_t out_features,
             at::ScalarType weight_type, std::optional<at::ScalarType> out_dtype) {
    check_dim(op, "x", input, 2);
    const int64_t panels = (out_features + kPanel - 1) / kPanel;
    check_shape(op, "packed", weights, {panels, input.size(1), kPanel});
    check_dtype(op, "packed", weights, weight_type);
    const auto type = out_dtype.value_or(input.scalar_type());
    out = at::empty({input.size(0), out_features}, input.options().dtype(type));
    x = input.contiguous();
    packed = weights.contiguous();
    if (biases.has_value()) {
      check_shape(op, "bias", *biases, {out_features});
      check_dtype(op, "bias", *biases, input.scalar_type());
      bias = biases->contiguous();
    }
    params = {.x = x.const_data_ptr(),
              .packed = packed.const_data_ptr(),
              .bias = biases.has_value() ? bias.const_data_ptr() : nullptr,
              .out = out.mutable_data_ptr(),
              .rows = x.size(0),
              .in_features = x.size(1),
              .out_features = out_features,
              .dtype = kernel_dtype(op, "x", x.scalar_type()),
              .out_dtype = kernel_dtype(op, "out_dtype", type)};
  }
};

at::Tensor run_linear(const at::Tensor& x, const at::Tensor& packed,
                      const std::optional<at::Tensor>& bias, int64_t out_features,
                      std::optional<at::ScalarType> out_dtype) {
  const LinearCall call("linear", x, packed, bias, out_features, x.scalar_type(), out_dtype);
  trtspec::linear(call.params);
  return call.out;
}

at::Tensor run_linear_int8(const at::Tensor& x, const at::Tensor& packed,
                           const at::Tensor& scales, const std::optional<at::Tensor>& bias,
                           int64_t out_features, int64_t group_size,
                           std::optional<at::ScalarType> out_dtype) {
  const char* op = "linear_int8";
  TORCH_CHECK(group_size == 0 || group_size == 32 || group_size == 64 || group_size == 128, op,
              ": group_size must be 0, 32, 64 or 128, got ", group_size);
  const LinearCall call(op, x, packed, bias, out_features, at::kChar, out_dtype);
  const int64_t depth = x.size(1), group = group_size > 0 ? group_size : depth;
  TORCH_CHECK(depth > 0, op, ": x must have input features, got shape ", x.sizes());
  check_shape(op, "scales", scales, {packed.size(0), (depth + group - 1) / group, kPanel});
  check_dtype(op, "scales", scales, at::kFloat);
  const at::Tensor factors = scales.contiguous();
  trtspec::linear_int8({.linear = call.params,
                        .scales = factors.const_data_ptr<float>(),
                        .group_size = group_size});
  return call.out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "linear(Tensor x, Tensor packed, Tensor? bias, int out_features, "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "linear_int8(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int out_features, "
      "int group_size, ScalarType? out_dtype=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("linear", &run_linear);
  m.impl("linear_int8", &run_linear_int8);
}
