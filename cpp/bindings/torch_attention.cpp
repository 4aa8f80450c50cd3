#include <torch/library.h>

#include "attention_call.hpp"
#include "shim.hpp"

namespace {

at::Tensor paged_tree_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                at::Tensor& k_cache, at::Tensor& v_cache,
                                const at::Tensor& positions, const at::Tensor& slot_mapping,
                                const at::Tensor& block_tables, const at::Tensor& query_start,
                                const at::Tensor& context_lens, const at::Tensor& is_tree,
                                const at::Tensor& tree_mask, double scale, int64_t sliding_window,
                                double soft_cap, const std::optional<at::Tensor>& sinks) {
  const trtspec::AttentionCall call(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                    block_tables, query_start, context_lens, is_tree, tree_mask,
                                    scale, sliding_window, soft_cap, sinks);
  trtspec::paged_tree_attention(call.params());
  return call.out();
}

at::Tensor paged_tree_attention_8bit(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     at::Tensor& k_cache, at::Tensor& v_cache, at::Tensor& k_scale,
                                     at::Tensor& v_scale, const at::Tensor& positions,
                                     const at::Tensor& slot_mapping, const at::Tensor& block_tables,
                                     const at::Tensor& query_start, const at::Tensor& context_lens,
                                     const at::Tensor& is_tree, const at::Tensor& tree_mask,
                                     double scale, int64_t sliding_window, double soft_cap,
                                     const std::optional<at::Tensor>& sinks) {
  const trtspec::AttentionCall call(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                    block_tables, query_start, context_lens, is_tree, tree_mask,
                                    scale, sliding_window, soft_cap, sinks, k_scale, v_scale);
  trtspec::paged_tree_attention(call.params());
  return call.out();
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_paged_tree_attention_8bit(
    AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle k_cache,
    AtenTensorHandle v_cache, AtenTensorHandle k_scale, AtenTensorHandle v_scale,
    AtenTensorHandle positions, AtenTensorHandle slot_mapping, AtenTensorHandle block_tables,
    AtenTensorHandle query_start, AtenTensorHandle context_lens, AtenTensorHandle is_tree,
    AtenTensorHandle tree_mask, double scale, int64_t sliding_window, double soft_cap,
    AtenTensorHandle* sinks, AtenTensorHandle* result) {
  using trtspec::optional_tensor, trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return paged_tree_attention_8bit(
        tensor(q), tensor(k), tensor(v), tensor(k_cache), tensor(v_cache), tensor(k_scale),
        tensor(v_scale), tensor(positions), tensor(slot_mapping), tensor(block_tables),
        tensor(query_start), tensor(context_lens), tensor(is_tree), tensor(tree_mask), scale,
        sliding_window, soft_cap, optional_tensor(sinks));
  });
}

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_paged_tree_attention(
    AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle k_cache,
    AtenTensorHandle v_cache, AtenTensorHandle positions, AtenTensorHandle slot_mapping,
    AtenTensorHandle block_tables, AtenTensorHandle query_start, AtenTensorHandle context_lens,
    AtenTensorHandle is_tree, AtenTensorHandle tree_mask, double scale, int64_t sliding_window,
    double soft_cap, AtenTensorHandle* sinks, AtenTensorHandle* result) {
  using trtspec::optional_tensor, trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return paged_tree_attention(tensor(q), tensor(k), tensor(v), tensor(k_cache), tensor(v_cache),
                                tensor(positions), tensor(slot_mapping), tensor(block_tables),
                                tensor(query_start), tensor(context_lens), tensor(is_tree),
                                tensor(tree_mask), scale, sliding_window, soft_cap,
                                optional_tensor(sinks));
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "paged_tree_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, "
      "Tensor(b!) v_cache, Tensor positions, Tensor slot_mapping, Tensor block_tables, "
      "Tensor query_start, Tensor context_lens, Tensor is_tree, Tensor tree_mask, float scale, "
      "int sliding_window, float soft_cap=0.0, Tensor? sinks=None) -> Tensor");
  m.def(
      "paged_tree_attention_8bit(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, "
      "Tensor(b!) v_cache, Tensor(c!) k_scale, Tensor(d!) v_scale, Tensor positions, "
      "Tensor slot_mapping, Tensor block_tables, Tensor query_start, Tensor context_lens, "
      "Tensor is_tree, Tensor tree_mask, float scale, int sliding_window, float soft_cap=0.0, "
      "Tensor? sinks=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("paged_tree_attention", &paged_tree_attention);
  m.impl("paged_tree_attention_8bit", &paged_tree_attention_8bit);
}
