#include <torch/library.h>

#include "causal_conv_call.hpp"
#include "shim.hpp"

namespace {

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::Tensor& tail, at::Tensor& kept,
                       const at::Tensor& state_slots, const at::Tensor& query_start,
                       const at::Tensor& context_lens, const at::Tensor& is_tree,
                       const at::Tensor& tree_mask) {
  const trtspec::CausalConvCall call(x, weight, bias, tail, kept, state_slots, query_start,
                                     context_lens, is_tree, tree_mask);
  trtspec::causal_conv(call.params());
  return call.out();
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
                       tensor(kept), tensor(state_slots), tensor(query_start), tensor(context_lens),
                       tensor(is_tree), tensor(tree_mask));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "causal_conv(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) tail, Tensor(b!) kept, "
      "Tensor state_slots, Tensor query_start, Tensor context_lens, Tensor is_tree, "
      "Tensor tree_mask) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("causal_conv", &causal_conv); }
