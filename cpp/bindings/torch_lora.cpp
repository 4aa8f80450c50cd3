#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/lora.hpp>

#include <numeric>

#include "checks.hpp"
#include "shim.hpp"

namespace {

using trtspec::check_dim, trtspec::check_dtype, trtspec::check_shape, trtspec::kernel_dtype;
using trtspec::optional_dtype, trtspec::optional_tensor, trtspec::run_shim, trtspec::tensor;
using trtspec::Prologue;

constexpr const char* kLoraOp = "lora";

void check_index(const at::Tensor& index, int64_t rows, int64_t adapters) {
  check_shape(kLoraOp, "index", index, {rows});
  check_dtype(kLoraOp, "index", index, at::kInt);
  const auto* values = index.const_data_ptr<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK_VALUE(values[row] >= -1 && values[row] < adapters, kLoraOp, ": row ", row,
                      " has adapter ", values[row], ", of ", adapters);
  }
}

at::Tensor lora(const at::Tensor& given, const at::Tensor& a, const at::Tensor& b,
                const at::Tensor& given_index, at::IntArrayRef parts,
                std::optional<at::ScalarType> out_dtype, const std::optional<at::Tensor>& norm,
                double eps, bool gated, const std::optional<at::Tensor>& residual) {
  check_dim(kLoraOp, "x", given, 2);
  check_dim(kLoraOp, "a", a, 3);
  check_dim(kLoraOp, "b", b, 3);
  const at::Tensor x = given.contiguous(), down = a.contiguous(), up = b.contiguous();
  const at::Tensor index = given_index.contiguous();
  const int64_t rows = x.size(0), depth = a.size(1), rank = b.size(1), outputs = b.size(2);
  const auto count = int64_t(parts.size());
  TORCH_CHECK(std::accumulate(parts.begin(), parts.end(), int64_t{0}) == outputs, kLoraOp,
              ": parts ", parts, " must sum to the ", outputs, " outputs of b");
  TORCH_CHECK(!(gated && norm.has_value()), kLoraOp, ": inputs are gated or normed, not both");
  check_shape(kLoraOp, "x", x, {rows, gated ? 2 * depth : depth});
  check_shape(kLoraOp, "a", a, {b.size(0), depth, count * rank});
  const auto type = x.scalar_type(), out_type = out_dtype.value_or(type);
  check_dtype(kLoraOp, "a", a, type);
  check_dtype(kLoraOp, "b", b, type);
  check_index(index, rows, a.size(0));
  at::Tensor out = at::empty({rows, outputs}, x.options().dtype(out_type));
  const auto checked = [&](const char* name, const std::optional<at::Tensor>& tensor,
                           at::IntArrayRef shape, at::ScalarType dtype) {
    if (!tensor.has_value()) return at::Tensor();
    check_shape(kLoraOp, name, *tensor, shape);
    check_dtype(kLoraOp, name, *tensor, dtype);
    return tensor->contiguous();
  };
  const at::Tensor weight = checked("norm", norm, {depth}, type);
  const at::Tensor before = checked("residual", residual, out.sizes(), out_type);
  trtspec::lora({
      .linear = {.x = x.const_data_ptr(),
                 .packed = nullptr,
                 .bias = nullptr,
                 .out = out.mutable_data_ptr(),
                 .rows = rows,
                 .in_features = depth,
                 .out_features = outputs,
                 .dtype = kernel_dtype(kLoraOp, "x", type),
                 .out_dtype = kernel_dtype(kLoraOp, "out_dtype", out_type),
                 .prologue = gated              ? Prologue::swiglu
                             : weight.defined() ? Prologue::rms_norm
                                                : Prologue::none,
                 .norm = weight.defined() ? weight.const_data_ptr() : nullptr,
                 .eps = static_cast<float>(eps),
                 .residual = before.defined() ? before.const_data_ptr() : nullptr},
      .a = down.const_data_ptr(),
      .b = up.const_data_ptr(),
      .index = index.const_data_ptr<int32_t>(),
      .parts = parts.data(),
      .num_parts = count,
      .rank = rank,
  });
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_lora(
    AtenTensorHandle x, AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle index,
    const int64_t* parts, int64_t num_parts, int32_t* out_dtype, AtenTensorHandle* norm, double eps,
    int32_t gated, AtenTensorHandle* residual, AtenTensorHandle* result) {
  return run_shim(result, [&] {
    return lora(tensor(x), tensor(a), tensor(b), tensor(index),
                at::IntArrayRef(parts, std::size_t(num_parts)), optional_dtype(out_dtype),
                optional_tensor(norm), eps, gated != 0, optional_tensor(residual));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "lora(Tensor x, Tensor a, Tensor b, Tensor index, int[] parts, ScalarType? out_dtype=None, "
      "*, Tensor? norm=None, float eps=0., bool gated=False, Tensor? residual=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("lora", &lora); }
