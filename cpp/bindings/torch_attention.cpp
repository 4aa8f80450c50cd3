#include <torch/library.h>

#include "attention_call.hpp"

namespace {

at::Tensor paged_tree_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                at::Tensor& k_cache, at::Tensor& v_cache,
                                const at::Tensor& positions, const at::Tensor& slot_mapping,
                                const at::Tensor& block_tables, const at::Tensor& query_start,
                                const at::Tensor& context_lens, const at::Tensor& is_tree,
                                const at::Tensor& tree_mask, double scale,
                                int64_t sliding_window) {
  const trtspec::AttentionCall call(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                    block_tables, query_start, context_lens, is_tree, tree_mask,
                                    scale, sliding_window);
  trtspec::paged_tree_attention(call.params());
  return call.out();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "paged_tree_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, "
      "Tensor(b!) v_cache, Tensor positions, Tensor slot_mapping, Tensor block_tables, "
      "Tensor query_start, Tensor context_lens, Tensor is_tree, Tensor tree_mask, float scale, "
      "int sliding_window) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("paged_tree_attention", &paged_tree_attention);
}
