#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/gated_delta.hpp>

#include "shim.hpp"
#include "state_walk_call.hpp"

namespace {

at::Tensor gated_delta(const at::Tensor& qkv, const at::Tensor& gates, const at::Tensor& a_log,
                       const at::Tensor& dt_bias, at::Tensor& state, at::Tensor& kept,
                       const at::Tensor& state_slots, const at::Tensor& query_start,
                       const at::Tensor& context_lens, const at::Tensor& is_tree,
                       const at::Tensor& tree_mask, int64_t key_dim) {
  constexpr const char* op = "gated_delta";
  trtspec::check_dim(op, "qkv", qkv, 2);
  trtspec::check_dim(op, "state", state, 3);
  trtspec::check_dim(op, "kept", kept, 3);
  const int64_t rows = qkv.size(0);
  const int64_t value_heads = state.size(1);
  TORCH_CHECK(key_dim >= 1 && value_heads >= 1 && state.size(2) % key_dim == 0, op,
              ": state must have heads of a multiple of key_dim ", key_dim, " elements, got shape ",
              state.sizes());
  const int64_t value_dim = state.size(2) / key_dim;
  const int64_t keys = qkv.size(1) - value_heads * value_dim;
  TORCH_CHECK(keys > 0 && keys % (2 * key_dim) == 0 && value_heads % (keys / (2 * key_dim)) == 0,
              op, ": qkv must have queries and keys of ", key_dim, " elements, of heads that ",
              value_heads, " is a multiple of, before values of ", value_dim, ", got shape ",
              qkv.sizes());
  const at::ScalarType type = qkv.scalar_type();
  trtspec::check_shape(op, "gates", gates, {rows, 2 * value_heads});
  trtspec::check_dtype(op, "gates", gates, type);
  trtspec::check_device(op, "gates", gates, qkv);
  const auto constant = [&](const char* name, const at::Tensor& given) {
    trtspec::check_shape(op, name, given, {value_heads});
    trtspec::check_dtype(op, name, given, at::kFloat);
    trtspec::check_device(op, name, given, qkv);
    return given.contiguous();
  };
  const at::Tensor constants[] = {constant("a_log", a_log), constant("dt_bias", dt_bias)};
  trtspec::check_buffer(op, "state", state, state.sizes(), at::kFloat, qkv);
  trtspec::check_buffer(op, "kept", kept, {kept.size(0), 1, 2 * value_heads}, type, qkv);
  const trtspec::StateWalkCall call(op, qkv, rows, state_slots, query_start, context_lens, is_tree,
                                    tree_mask);
  const at::Tensor packed[] = {qkv.contiguous(), gates.contiguous()};
  at::Tensor out = at::empty({rows, value_heads * value_dim}, qkv.options());
  trtspec::gated_delta({
      .qkv = packed[0].const_data_ptr(),
      .gates = packed[1].const_data_ptr(),
      .kept = kept.mutable_data_ptr(),
      .out = out.mutable_data_ptr(),
      .dtype = trtspec::kernel_dtype(op, "qkv", type),
      .a_log = constants[0].const_data_ptr<float>(),
      .dt_bias = constants[1].const_data_ptr<float>(),
      .state = state.mutable_data_ptr<float>(),
      .key_heads = keys / (2 * key_dim),
      .value_heads = value_heads,
      .key_dim = key_dim,
      .value_dim = value_dim,
      .walk = call.walk(state.size(0), kept.size(0)),
  });
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_gated_delta(
    AtenTensorHandle qkv, AtenTensorHandle gates, AtenTensorHandle a_log, AtenTensorHandle dt_bias,
    AtenTensorHandle state, AtenTensorHandle kept, AtenTensorHandle state_slots,
    AtenTensorHandle query_start, AtenTensorHandle context_lens, AtenTensorHandle is_tree,
    AtenTensorHandle tree_mask, int64_t key_dim, AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return gated_delta(tensor(qkv), tensor(gates), tensor(a_log), tensor(dt_bias), tensor(state),
                       tensor(kept), tensor(state_slots), tensor(query_start),
                       tensor(context_lens), tensor(is_tree), tensor(tree_mask), key_dim);
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "gated_delta(Tensor qkv, Tensor gates, Tensor a_log, Tensor dt_bias, Tensor(a!) state, "
      "Tensor(b!) kept, Tensor state_slots, Tensor query_start, Tensor context_lens, "
      "Tensor is_tree, Tensor tree_mask, int key_dim) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("gated_delta", &gated_delta); }
