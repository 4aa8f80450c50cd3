#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/moe.hpp>

#include "checks.hpp"
#include "shim.hpp"

namespace {

using trtspec::Activation, trtspec::check_dim, trtspec::check_dtype, trtspec::check_shape;
using trtspec::ExpertLayers, trtspec::kCodeOutputs, trtspec::kernel_dtype, trtspec::kPanel;
using trtspec::optional_tensor, trtspec::run_shim, trtspec::tensor;

constexpr const char* kOp = "moe";

// The coding of all experts' weights; see trtspec/ops/moe.py.
struct Coding {
  int64_t bits;
  int64_t group_size;
  int64_t input_bits;
  bool e4m3;
};

struct LayerArguments {
  const char* name;
  const at::Tensor& packed;
  const std::optional<at::Tensor>& scales;
  const std::optional<at::Tensor>& zeros;
  const std::optional<at::Tensor>& offsets;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& table;
};

// One layer of all experts, checked; `layers` points into the tensors kept here.
struct LayersCall {
  at::Tensor packed, scales, zeros, offsets, bias, table;
  ExpertLayers layers{};

  LayersCall(const LayerArguments& given, const Coding& coding, int64_t experts, int64_t depth,
             int64_t outputs, const at::Tensor& x)
      : packed(given.packed.contiguous()) {
    const auto kind = packed.scalar_type();
    trtspec::LinearQuantisedParams& first = layers.first;
    first.bits = coding.bits;
    first.group_size = coding.group_size;
    first.input_bits = coding.input_bits;
    first.e4m3 = coding.e4m3;
    first.scale_dtype = trtspec::DType::f32;
    first.linear.in_features = depth;
    first.linear.out_features = outputs;
    first.linear.dtype = kernel_dtype(kOp, "x", x.scalar_type());
    const int64_t width = kind == at::kByte ? kCodeOutputs : kPanel;
    const int64_t panels = (outputs + width - 1) / width;
    if (kind == at::kByte) {
      TORCH_CHECK(coding.bits == 4 || coding.bits == 8, kOp, ": bits must be 4 or 8, got ",
                  coding.bits);
      layers.kind = ExpertLayers::Kind::codes;
      const int64_t blocks = (depth * coding.bits + 31) / 32;
      check_shape(kOp, given.name, packed, {experts, panels, blocks, width, 4});
    } else {
      layers.kind = ExpertLayers::Kind::plain;
      check_dtype(kOp, given.name, packed, x.scalar_type());
      check_shape(kOp, given.name, packed, {experts, panels, depth, width});
    }
    first.linear.packed = packed.const_data_ptr();
    layers.packed_bytes = packed.stride(0) * packed.element_size();
    if (layers.kind != ExpertLayers::Kind::plain) {
      TORCH_CHECK(given.scales.has_value(), kOp, ": ", given.name,
                  " of whole numbers needs scales");
      const int64_t group = coding.group_size > 0 ? coding.group_size : depth;
      const int64_t shape[] = {experts, panels, (depth + group - 1) / group, width};
      scales = given.scales->contiguous();
      check_shape(kOp, "scales", scales, shape);
      first.scale_dtype = kernel_dtype(kOp, "scales", scales.scalar_type());
      first.scales = scales.const_data_ptr();
      layers.scale_bytes = scales.stride(0) * scales.element_size();
      if (given.zeros.has_value()) {
        zeros = given.zeros->contiguous();
        check_shape(kOp, "zeros", zeros, shape);
        check_dtype(kOp, "zeros", zeros, at::kChar);
        first.zeros = zeros.const_data_ptr<int8_t>();
        layers.zero_bytes = zeros.stride(0);
      }
      if (given.offsets.has_value()) {
        offsets = given.offsets->contiguous();
        check_shape(kOp, "offsets", offsets, shape);
        check_dtype(kOp, "offsets", offsets, scales.scalar_type());
        first.offsets = offsets.const_data_ptr();
      }
    }
    if (given.table.has_value()) {
      table = given.table->contiguous();
      check_shape(kOp, "table", table, {experts, 16});
      check_dtype(kOp, "table", table, at::kChar);
      first.table = table.const_data_ptr<int8_t>();
      layers.table_bytes = table.stride(0);
    }
    if (given.bias.has_value()) {
      bias = given.bias->contiguous();
      check_shape(kOp, "bias", bias, {experts, outputs});
      check_dtype(kOp, "bias", bias, x.scalar_type());
      first.linear.bias = bias.const_data_ptr();
      layers.bias_bytes = bias.stride(0) * bias.element_size();
    }
  }
};

Activation activation_named(int64_t kind) {
  TORCH_CHECK(kind >= 0 && kind <= 4, kOp, ": activation must be 0 to 4, got ", kind);
  return static_cast<Activation>(kind);
}

// That the experts of each row exist and differ.
void check_chosen(const at::Tensor& chosen, int64_t experts) {
  const int64_t* ids = chosen.const_data_ptr<int64_t>();
  const int64_t top_k = chosen.size(1);
  for (int64_t row = 0; row < chosen.size(0); ++row, ids += top_k) {
    for (int64_t i = 0; i < top_k; ++i) {
      TORCH_CHECK_VALUE(ids[i] >= -1 && ids[i] < experts, kOp, ": row ", row, " chose expert ",
                        ids[i], ", there are ", experts);
      for (int64_t j = 0; j < i; ++j) {
        TORCH_CHECK_VALUE(ids[j] != ids[i] || ids[i] < 0, kOp, ": row ", row, " chose expert ",
                          ids[i], " twice");
      }
    }
  }
}

at::Tensor run_moe(
    const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights,
    int64_t inner_features, const at::Tensor& up, const std::optional<at::Tensor>& up_scales,
    const std::optional<at::Tensor>& up_zeros, const std::optional<at::Tensor>& up_offsets,
    const std::optional<at::Tensor>& up_bias, const std::optional<at::Tensor>& up_table,
    const at::Tensor& down, const std::optional<at::Tensor>& down_scales,
    const std::optional<at::Tensor>& down_zeros, const std::optional<at::Tensor>& down_offsets,
    const std::optional<at::Tensor>& down_bias, const std::optional<at::Tensor>& down_table,
    int64_t bits, int64_t group_size, int64_t input_bits, bool e4m3, int64_t activation,
    double limit, double offset, const std::optional<at::Tensor>& residual) {
  check_dim(kOp, "x", x, 2);
  check_dim(kOp, "chosen", chosen, 2);
  TORCH_CHECK(up.dim() > 0, kOp, ": up must have experts");
  const int64_t rows = x.size(0), hidden = x.size(1), experts = up.size(0);
  const at::Tensor ids = chosen.contiguous(), factors = weights.contiguous();
  check_shape(kOp, "chosen", ids, {rows, chosen.size(1)});
  check_dtype(kOp, "chosen", ids, at::kLong);
  check_shape(kOp, "weights", factors, ids.sizes());
  check_dtype(kOp, "weights", factors, at::kFloat);
  check_chosen(ids, experts);
  const at::Tensor inputs = x.contiguous();
  const Coding coding{bits, group_size, input_bits, e4m3};
  const LayersCall first({"up", up, up_scales, up_zeros, up_offsets, up_bias, up_table}, coding,
                         experts, hidden, 2 * inner_features, inputs);
  const LayersCall second(
      {"down", down, down_scales, down_zeros, down_offsets, down_bias, down_table}, coding, experts,
      inner_features, hidden, inputs);
  at::Tensor kept;
  if (residual.has_value()) {
    kept = residual->contiguous();
    check_shape(kOp, "residual", kept, inputs.sizes());
    check_dtype(kOp, "residual", kept, inputs.scalar_type());
  }
  at::Tensor out = at::empty(inputs.sizes(), inputs.options());
  trtspec::moe({.x = inputs.const_data_ptr(),
                .chosen = ids.const_data_ptr<int64_t>(),
                .weights = factors.const_data_ptr<float>(),
                .residual = kept.defined() ? kept.const_data_ptr() : nullptr,
                .out = out.mutable_data_ptr(),
                .rows = rows,
                .hidden = hidden,
                .inner = inner_features,
                .num_experts = experts,
                .top_k = ids.size(1),
                .dtype = kernel_dtype(kOp, "x", inputs.scalar_type()),
                .up = first.layers,
                .down = second.layers,
                .activation = activation_named(activation),
                .limit = static_cast<float>(limit),
                .offset = static_cast<float>(offset)});
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_moe(
    AtenTensorHandle x, AtenTensorHandle chosen, AtenTensorHandle weights, int64_t inner_features,
    AtenTensorHandle up, AtenTensorHandle* up_scales, AtenTensorHandle* up_zeros,
    AtenTensorHandle* up_offsets, AtenTensorHandle* up_bias, AtenTensorHandle* up_table,
    AtenTensorHandle down, AtenTensorHandle* down_scales, AtenTensorHandle* down_zeros,
    AtenTensorHandle* down_offsets, AtenTensorHandle* down_bias, AtenTensorHandle* down_table,
    int64_t bits, int64_t group_size, int64_t input_bits, int32_t e4m3, int64_t activation,
    double limit, double offset, AtenTensorHandle* residual, AtenTensorHandle* result) {
  return run_shim(result, [&] {
    return run_moe(tensor(x), tensor(chosen), tensor(weights), inner_features, tensor(up),
                   optional_tensor(up_scales), optional_tensor(up_zeros),
                   optional_tensor(up_offsets), optional_tensor(up_bias), optional_tensor(up_table),
                   tensor(down), optional_tensor(down_scales), optional_tensor(down_zeros),
                   optional_tensor(down_offsets), optional_tensor(down_bias),
                   optional_tensor(down_table), bits, group_size, input_bits, e4m3 != 0, activation,
                   limit, offset, optional_tensor(residual));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "moe(Tensor x, Tensor chosen, Tensor weights, int inner_features, Tensor up, "
      "Tensor? up_scales, Tensor? up_zeros, Tensor? up_offsets, Tensor? up_bias, "
      "Tensor? up_table, Tensor down, Tensor? down_scales, Tensor? down_zeros, "
      "Tensor? down_offsets, Tensor? down_bias, Tensor? down_table, "
      "int bits, int group_size, int input_bits, bool e4m3, int activation, float limit, float "
      "offset, "
      "Tensor? residual) -> Tensor");
  m.def("_expert_bytes_read() -> int", &trtspec::expert_bytes_read);
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("moe", &run_moe); }
