#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/linear.hpp>

#include "checks.hpp"

namespace {

at::Tensor linear(const at::Tensor& x, const at::Tensor& packed,
                  const std::optional<at::Tensor>& bias, int64_t out_features,
                  std::optional<at::ScalarType> out_dtype) {
  using namespace trtspec;
  check_dim("linear", "x", x, 2);
  const int64_t panels = (out_features + kPanel - 1) / kPanel;
  check_shape("linear", "packed", packed, {panels, x.size(1), kPanel});
  check_dtype("linear", "packed", packed, x.scalar_type());
  const auto type = out_dtype.value_or(x.scalar_type());
  at::Tensor out = at::empty({x.size(0), out_features}, x.options().dtype(type));
  const at::Tensor rows = x.contiguous();
  const at::Tensor weights = packed.contiguous();
  at::Tensor biases;
  if (bias.has_value()) {
    check_shape("linear", "bias", *bias, {out_features});
    check_dtype("linear", "bias", *bias, x.scalar_type());
    biases = bias->contiguous();
  }
  trtspec::linear(LinearParams{
      .x = rows.const_data_ptr(),
      .packed = weights.const_data_ptr(),
      .bias = bias.has_value() ? biases.const_data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = x.size(0),
      .in_features = x.size(1),
      .out_features = out_features,
      .dtype = kernel_dtype("linear", "x", x.scalar_type()),
      .out_dtype = kernel_dtype("linear", "out_dtype", type),
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "linear(Tensor x, Tensor packed, Tensor? bias, int out_features, "
      "ScalarType? out_dtype=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("linear", &linear); }
