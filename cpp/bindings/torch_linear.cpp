#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/linear.hpp>

#include "checks.hpp"
#include "shim.hpp"

namespace {

using trtspec::check_dim, trtspec::check_dtype, trtspec::check_shape, trtspec::kernel_dtype;
using trtspec::kCodeOutputs, trtspec::kPanel, trtspec::LinearParams, trtspec::Prologue;
using trtspec::optional_dtype, trtspec::optional_tensor, trtspec::run_shim, trtspec::tensor;

// The arguments that both ops share.
struct LinearArguments {
  const at::Tensor& x;
  const at::Tensor& packed;
  const std::optional<at::Tensor>& bias;
  int64_t out_features;
  std::optional<at::ScalarType> out_dtype;
  const std::optional<at::Tensor>& norm;
  double eps;
  bool gated;
  const std::optional<at::Tensor>& residual;
};

// The same checked, with the params of a call, which point into it.
struct LinearCall {
  at::Tensor x, packed, bias, norm, residual, out;
  LinearParams params;

  LinearCall(const char* op, const LinearArguments& given) {
    check_dim(op, "packed", given.packed, 3);
    const int64_t panels = (given.out_features + kPanel - 1) / kPanel;
    const int64_t depth = given.packed.size(1);
    check_shape(op, "packed", given.packed, {panels, depth, kPanel});
    set(op, given, given.x.scalar_type(), depth);
  }

  // Of weights in codes.
  LinearCall(const char* op, const LinearArguments& given, int64_t bits) {
    TORCH_CHECK(bits == 4 || bits == 8, op, ": bits must be 4 or 8, got ", bits);
    check_dim(op, "x", given.x, 2);
    const int64_t depth = given.gated ? given.x.size(1) / 2 : given.x.size(1);
    TORCH_CHECK(depth > 0, op, ": x must have input features, got shape ", given.x.sizes());
    const int64_t panels = (given.out_features + kCodeOutputs - 1) / kCodeOutputs;
    const int64_t blocks = (depth * bits + 31) / 32;
    check_shape(op, "packed", given.packed, {panels, blocks, kCodeOutputs, 4});
    set(op, given, at::kByte, depth);
  }

 private:
  void set(const char* op, const LinearArguments& given, at::ScalarType weight_type,
           int64_t depth) {
    check_dim(op, "x", given.x, 2);
    const int64_t rows = given.x.size(0);
    TORCH_CHECK(!(given.gated && given.norm.has_value()), op,
                ": inputs are gated or normed, not both");
    check_shape(op, "x", given.x, {rows, given.gated ? 2 * depth : depth});
    check_dtype(op, "packed", given.packed, weight_type);
    const auto type = given.out_dtype.value_or(given.x.scalar_type());
    out = at::empty({rows, given.out_features}, given.x.options().dtype(type));
    x = given.x.contiguous();
    packed = given.packed.contiguous();
    const auto input_type = x.scalar_type();
    const auto optional = [&](const char* name, const std::optional<at::Tensor>& tensor,
                              at::IntArrayRef shape, at::ScalarType dtype, at::Tensor& kept) {
      if (!tensor.has_value()) return static_cast<const void*>(nullptr);
      check_shape(op, name, *tensor, shape);
      check_dtype(op, name, *tensor, dtype);
      kept = tensor->contiguous();
      return kept.const_data_ptr();
    };
    params = {.x = x.const_data_ptr(),
              .packed = packed.const_data_ptr(),
              .bias = optional("bias", given.bias, {given.out_features}, input_type, bias),
              .out = out.mutable_data_ptr(),
              .rows = rows,
              .in_features = depth,
              .out_features = given.out_features,
              .dtype = kernel_dtype(op, "x", input_type),
              .out_dtype = kernel_dtype(op, "out_dtype", type),
              .norm = optional("norm", given.norm, {depth}, input_type, norm),
              .eps = static_cast<float>(given.eps),
              .residual = optional("residual", given.residual, out.sizes(), type, residual)};
    if (given.gated) params.prologue = Prologue::swiglu;
    if (given.norm.has_value()) params.prologue = Prologue::rms_norm;
  }
};

at::Tensor run_linear(const at::Tensor& x, const at::Tensor& packed,
                      const std::optional<at::Tensor>& bias, int64_t out_features,
                      std::optional<at::ScalarType> out_dtype,
                      const std::optional<at::Tensor>& norm, double eps, bool gated,
                      const std::optional<at::Tensor>& residual) {
  const LinearCall call("linear",
                        {x, packed, bias, out_features, out_dtype, norm, eps, gated, residual});
  trtspec::linear(call.params);
  return call.out;
}

at::Tensor run_linear_quantised(const at::Tensor& x, const at::Tensor& packed,
                                const at::Tensor& scales, const std::optional<at::Tensor>& zeros,
                                const std::optional<at::Tensor>& offsets,
                                const std::optional<at::Tensor>& bias, int64_t out_features,
                                int64_t bits, int64_t group_size, int64_t input_bits,
                                std::optional<at::ScalarType> out_dtype,
                                const std::optional<at::Tensor>& norm, double eps, bool gated,
                                const std::optional<at::Tensor>& residual,
                                const std::optional<at::Tensor>& table, bool e4m3) {
  const char* op = "linear_quantised";
  TORCH_CHECK(group_size == 0 || group_size == 16 || group_size == 32 || group_size == 64 ||
                  group_size == 128 || group_size == 256,
              op, ": group_size must be 0, 16, 32, 64, 128 or 256, got ", group_size);
  const LinearCall call(op, {x, packed, bias, out_features, out_dtype, norm, eps, gated, residual},
                        bits);
  const int64_t depth = call.params.in_features, group = group_size > 0 ? group_size : depth;
  const int64_t shape[] = {packed.size(0), (depth + group - 1) / group, kCodeOutputs};
  check_shape(op, "scales", scales, shape);
  TORCH_CHECK(input_bits == 0 || input_bits == 8 || input_bits == 16, op,
              ": input_bits must be 0, 8 or 16, got ", input_bits);
  TORCH_CHECK(!e4m3 || (bits == 8 && input_bits == 0), op,
              ": floats of 8 bits are multiplied by floats, got bits = ", bits);
  TORCH_CHECK(!(zeros.has_value() && offsets.has_value()), op, ": zeros or offsets, not both");
  const at::Tensor factors = scales.contiguous();
  at::Tensor points, minima;
  if (zeros.has_value()) {
    check_shape(op, "zeros", *zeros, shape);
    check_dtype(op, "zeros", *zeros, at::kChar);
    points = zeros->contiguous();
  }
  if (offsets.has_value()) {
    check_shape(op, "offsets", *offsets, shape);
    check_dtype(op, "offsets", *offsets, scales.scalar_type());
    minima = offsets->contiguous();
  }
  at::Tensor values;
  if (table.has_value()) {
    TORCH_CHECK(bits == 4, op, ": a table is of codes of 4 bits, got bits = ", bits);
    check_shape(op, "table", *table, {16});
    check_dtype(op, "table", *table, at::kChar);
    values = table->contiguous();
  }
  trtspec::linear_quantised({.linear = call.params,
                             .scales = factors.const_data_ptr(),
                             .offsets = minima.defined() ? minima.const_data_ptr() : nullptr,
                             .zeros = points.defined() ? points.const_data_ptr<int8_t>() : nullptr,
                             .scale_dtype = kernel_dtype(op, "scales", scales.scalar_type()),
                             .bits = bits,
                             .group_size = group_size,
                             .input_bits = input_bits,
                             .table = values.defined() ? values.const_data_ptr<int8_t>() : nullptr,
                             .e4m3 = e4m3});
  return call.out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_linear_quantised(
    AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle scales, AtenTensorHandle* zeros,
    AtenTensorHandle* offsets, AtenTensorHandle* bias, int64_t out_features, int64_t bits,
    int64_t group_size, int64_t input_bits, int32_t* out_dtype, AtenTensorHandle* norm, double eps,
    int32_t gated, AtenTensorHandle* residual, AtenTensorHandle* table, int32_t e4m3,
    AtenTensorHandle* result) {
  return run_shim(result, [&] {
    return run_linear_quantised(tensor(x), tensor(packed), tensor(scales), optional_tensor(zeros),
                                optional_tensor(offsets), optional_tensor(bias), out_features, bits,
                                group_size, input_bits, optional_dtype(out_dtype),
                                optional_tensor(norm), eps, gated != 0, optional_tensor(residual),
                                optional_tensor(table), e4m3 != 0);
  });
}

extern "C" AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_cpu_linear(AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle* bias,
                      int64_t out_features, int32_t* out_dtype, AtenTensorHandle* norm, double eps,
                      int32_t gated, AtenTensorHandle* residual, AtenTensorHandle* result) {
  return run_shim(result, [&] {
    return run_linear(tensor(x), tensor(packed), optional_tensor(bias), out_features,
                      optional_dtype(out_dtype), optional_tensor(norm), eps, gated != 0,
                      optional_tensor(residual));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "linear(Tensor x, Tensor packed, Tensor? bias, int out_features, "
      "ScalarType? out_dtype=None, *, Tensor? norm=None, float eps=0., bool gated=False, "
      "Tensor? residual=None) -> Tensor");
  m.def(
      "linear_quantised(Tensor x, Tensor packed, Tensor scales, Tensor? zeros, Tensor? offsets, "
      "Tensor? bias, int out_features, int bits, int group_size, int input_bits, "
      "ScalarType? out_dtype=None, *, Tensor? norm=None, float eps=0., bool gated=False, "
      "Tensor? residual=None, Tensor? table=None, bool e4m3=False) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("linear", &run_linear);
  m.impl("linear_quantised", &run_linear_quantised);
}
