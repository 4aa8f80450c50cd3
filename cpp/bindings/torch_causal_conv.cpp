#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/causal_conv.hpp>

#include "shim.hpp"
#include "state_walk_call.hpp"

namespace {

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::Tensor& tail, at::Tensor& kept,
                       const at::Tensor& state_slots, const at::Tensor& query_start,
                       const at::Tensor& context_lens, const at::Tensor& is_tree,
                       const at::Tensor& tree_mask) {
  constexpr const char* op = "causal_conv";
  trtspec::check_dim(op, "x", x, 2);
  trtspec::check_dim(op, "weight", weight, 2);
  trtspec::check_dim(op, "tail", tail, 3);
  trtspec::check_dim(op, "kept", kept, 3);
  const int64_t rows = x.size(0);
  const int64_t channels = x.size(1);
  const int64_t width = weight.size(0);
  const at::ScalarType type = x.scalar_type();
  TORCH_CHECK(width >= 1, op, ": weight must have a row at least");
  const auto constant = [&](const char* name, const at::Tensor& given, at::IntArrayRef shape) {
    trtspec::check_shape(op, name, given, shape);
    trtspec::check_dtype(op, name, given, type);
    trtspec::check_device(op, name, given, x);
    return given.contiguous();
  };
  const at::Tensor weights = constant("weight", weight, {width, channels});
  at::Tensor biases;
  if (bias) biases = constant("bias", *bias, {channels});
  trtspec::check_buffer(op, "tail", tail, {tail.size(0), width - 1, channels}, type, x);
  trtspec::check_buffer(op, "kept", kept, {kept.size(0), 1, channels}, type, x);
  const trtspec::StateWalkCall call(op, x, rows, state_slots, query_start, context_lens, is_tree,
                                    tree_mask);
  const at::Tensor packed = channels == 1 || x.stride(1) == 1 ? x : x.contiguous();
  at::Tensor out = at::empty({rows, channels}, x.options());
  trtspec::causal_conv({
      .x = packed.const_data_ptr(),
      .x_row_stride = packed.stride(0),
      .weight = weights.const_data_ptr(),
      .bias = bias ? biases.const_data_ptr() : nullptr,
      .tail = tail.mutable_data_ptr(),
      .kept = kept.mutable_data_ptr(),
      .out = out.mutable_data_ptr(),
      .dtype = trtspec::kernel_dtype(op, "x", type),
      .channels = channels,
      .width = width,
      .walk = call.walk(tail.size(0), kept.size(0)),
  });
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_causal_conv(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, AtenTensorHandle tail,
    AtenTensorHandle kept, AtenTensorHandle state_slots, AtenTensorHandle query_start,
    AtenTensorHandle context_lens, AtenTensorHandle is_tree, AtenTensorHandle tree_mask,
    AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return causal_conv(tensor(x), tensor(weight), trtspec::optional_tensor(bias), tensor(tail),
                       tensor(kept), tensor(state_slots), tensor(query_start),
                       tensor(context_lens), tensor(is_tree), tensor(tree_mask));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "causal_conv(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) tail, Tensor(b!) kept, "
      "Tensor state_slots, Tensor query_start, Tensor context_lens, Tensor is_tree, "
      "Tensor tree_mask) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("causal_conv", &causal_conv); }
