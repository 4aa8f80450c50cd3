#include <torch/library.h>

#include "gated_delta_call.hpp"
#include "shim.hpp"

namespace {

at::Tensor gated_delta(const at::Tensor& qkv, const at::Tensor& gates, const at::Tensor& a_log,
                       const at::Tensor& dt_bias, at::Tensor& state, at::Tensor& kept,
                       const at::Tensor& state_slots, const at::Tensor& query_start,
                       const at::Tensor& context_lens, const at::Tensor& is_tree,
                       const at::Tensor& tree_mask, int64_t key_dim, bool tiled) {
  const trtspec::GatedDeltaCall call(qkv, gates, a_log, dt_bias, state, kept, state_slots,
                                     query_start, context_lens, is_tree, tree_mask, key_dim, tiled);
  trtspec::gated_delta(call.params());
  return call.out();
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_gated_delta(
    AtenTensorHandle qkv, AtenTensorHandle gates, AtenTensorHandle a_log, AtenTensorHandle dt_bias,
    AtenTensorHandle state, AtenTensorHandle kept, AtenTensorHandle state_slots,
    AtenTensorHandle query_start, AtenTensorHandle context_lens, AtenTensorHandle is_tree,
    AtenTensorHandle tree_mask, int64_t key_dim, std::int32_t tiled, AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return gated_delta(tensor(qkv), tensor(gates), tensor(a_log), tensor(dt_bias), tensor(state),
                       tensor(kept), tensor(state_slots), tensor(query_start), tensor(context_lens),
                       tensor(is_tree), tensor(tree_mask), key_dim, tiled != 0);
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "gated_delta(Tensor qkv, Tensor gates, Tensor a_log, Tensor dt_bias, Tensor(a!) state, "
      "Tensor(b!) kept, Tensor state_slots, Tensor query_start, Tensor context_lens, "
      "Tensor is_tree, Tensor tree_mask, int key_dim, bool tiled) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("gated_delta", &gated_delta); }
