#include <torch/library.h>

#include "mamba2_call.hpp"
#include "shim.hpp"

namespace {

at::Tensor mamba2(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& gate,
                  const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& skip,
                  at::Tensor& state, at::Tensor& kept, const at::Tensor& state_slots,
                  const at::Tensor& query_start, const at::Tensor& context_lens,
                  const at::Tensor& is_tree, const at::Tensor& tree_mask, int64_t groups,
                  double dt_min, double dt_max) {
  const trtspec::Mamba2Call call(xbc, dt, gate, a_log, dt_bias, skip, state, kept, state_slots,
                                 query_start, context_lens, is_tree, tree_mask, groups, dt_min,
                                 dt_max);
  trtspec::mamba2(call.params());
  return call.out();
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_mamba2(
    AtenTensorHandle xbc, AtenTensorHandle dt, AtenTensorHandle gate, AtenTensorHandle a_log,
    AtenTensorHandle dt_bias, AtenTensorHandle skip, AtenTensorHandle state, AtenTensorHandle kept,
    AtenTensorHandle state_slots, AtenTensorHandle query_start, AtenTensorHandle context_lens,
    AtenTensorHandle is_tree, AtenTensorHandle tree_mask, int64_t groups, double dt_min,
    double dt_max, AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return mamba2(tensor(xbc), tensor(dt), tensor(gate), tensor(a_log), tensor(dt_bias),
                  tensor(skip), tensor(state), tensor(kept), tensor(state_slots),
                  tensor(query_start), tensor(context_lens), tensor(is_tree), tensor(tree_mask),
                  groups, dt_min, dt_max);
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "mamba2(Tensor xbc, Tensor dt, Tensor gate, Tensor a_log, Tensor dt_bias, Tensor skip, "
      "Tensor(a!) state, Tensor(b!) kept, Tensor state_slots, Tensor query_start, "
      "Tensor context_lens, Tensor is_tree, Tensor tree_mask, int groups, float dt_min, "
      "float dt_max) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("mamba2", &mamba2); }
