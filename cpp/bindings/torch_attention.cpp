#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/attention.hpp>

#include "checks.hpp"

namespace {

constexpr const char* kOp = "paged_tree_attention";

// Rows may lie apart, as in a view of a fused projection, but heads and elements must be packed.
at::Tensor packed_rows(const at::Tensor& x) {
  const bool packed = (x.size(2) == 1 || x.stride(2) == 1) &&
                      (x.size(1) == 1 || x.stride(1) == x.size(2));
  return packed ? x : x.contiguous();
}

at::Tensor paged_tree_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                at::Tensor& k_cache, at::Tensor& v_cache,
                                const at::Tensor& positions, const at::Tensor& slot_mapping,
                                const at::Tensor& block_tables, const at::Tensor& query_start,
                                const at::Tensor& context_lens, const at::Tensor& is_tree,
                                const at::Tensor& tree_mask, double scale,
                                int64_t sliding_window) {
  using namespace trtspec;
  check_dim(kOp, "q", q, 3);
  check_dim(kOp, "k", k, 3);
  check_dim(kOp, "k_cache", k_cache, 4);
  const int64_t rows = q.size(0);
  const int64_t kv_heads = k.size(1);
  const int64_t head_dim = q.size(2);
  TORCH_CHECK(kv_heads > 0 && q.size(1) % kv_heads == 0, kOp, ": ", q.size(1),
              " query heads are not a multiple of ", kv_heads, " kv heads");
  check_shape(kOp, "k", k, {rows, kv_heads, head_dim});
  check_shape(kOp, "v", v, k.sizes());
  check_shape(kOp, "k_cache", k_cache, {k_cache.size(0), k_cache.size(1), kv_heads, head_dim});
  check_shape(kOp, "v_cache", v_cache, k_cache.sizes());
  for (const auto& [name, tensor] : {std::pair<const char*, const at::Tensor&>{"k", k},
                                     {"v", v},
                                     {"k_cache", k_cache},
                                     {"v_cache", v_cache}}) {
    check_dtype(kOp, name, tensor, q.scalar_type());
  }
  TORCH_CHECK(k_cache.is_contiguous() && v_cache.is_contiguous(), kOp,
              ": k_cache and v_cache must be contiguous");
  check_dim(kOp, "context_lens", context_lens, 1);
  const int64_t requests = context_lens.size(0);
  check_dim(kOp, "block_tables", block_tables, 2);
  check_dim(kOp, "tree_mask", tree_mask, 2);
  check_shape(kOp, "positions", positions, {rows});
  check_shape(kOp, "slot_mapping", slot_mapping, {rows});
  check_shape(kOp, "block_tables", block_tables, {requests, block_tables.size(1)});
  check_shape(kOp, "query_start", query_start, {requests + 1});
  check_shape(kOp, "is_tree", is_tree, {requests});
  check_shape(kOp, "tree_mask", tree_mask, {rows, tree_mask.size(1)});
  check_dtype(kOp, "positions", positions, at::kLong);
  check_dtype(kOp, "slot_mapping", slot_mapping, at::kLong);
  check_dtype(kOp, "block_tables", block_tables, at::kInt);
  check_dtype(kOp, "query_start", query_start, at::kInt);
  check_dtype(kOp, "context_lens", context_lens, at::kInt);
  check_dtype(kOp, "is_tree", is_tree, at::kBool);
  check_dtype(kOp, "tree_mask", tree_mask, at::kLong);
  TORCH_CHECK(sliding_window >= 0, kOp, ": sliding_window must be 0 (none) or more, got ",
              sliding_window);

  const at::Tensor q_rows = packed_rows(q);
  const at::Tensor k_rows = packed_rows(k);
  const at::Tensor v_rows = packed_rows(v);
  const at::Tensor position = positions.contiguous();
  const at::Tensor slot = slot_mapping.contiguous();
  const at::Tensor table = block_tables.contiguous();
  const at::Tensor start = query_start.contiguous();
  const at::Tensor context = context_lens.contiguous();
  const at::Tensor tree = is_tree.contiguous();
  const at::Tensor mask = tree_mask.contiguous();
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  trtspec::paged_tree_attention(AttentionParams{
      .q = q_rows.const_data_ptr(),
      .k = k_rows.const_data_ptr(),
      .v = v_rows.const_data_ptr(),
      .q_stride = q_rows.stride(0),
      .k_stride = k_rows.stride(0),
      .v_stride = v_rows.stride(0),
      .k_cache = k_cache.mutable_data_ptr(),
      .v_cache = v_cache.mutable_data_ptr(),
      .out = out.mutable_data_ptr(),
      .dtype = kernel_dtype(kOp, "q", q.scalar_type()),
      .rows = rows,
      .requests = requests,
      .heads = q.size(1),
      .kv_heads = kv_heads,
      .head_dim = head_dim,
      .num_blocks = k_cache.size(0),
      .block_size = k_cache.size(1),
      .table_width = block_tables.size(1),
      .mask_words = tree_mask.size(1),
      .positions = position.const_data_ptr<int64_t>(),
      .slot_mapping = slot.const_data_ptr<int64_t>(),
      .block_tables = table.const_data_ptr<int32_t>(),
      .query_start = start.const_data_ptr<int32_t>(),
      .context_lens = context.const_data_ptr<int32_t>(),
      .is_tree = tree.const_data_ptr<bool>(),
      .tree_mask = mask.const_data_ptr<int64_t>(),
      .scale = float(scale),
      .sliding_window = sliding_window,
  });
  return out;
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
