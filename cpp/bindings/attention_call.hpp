// A call of trtspec::paged_tree_attention (contract: trtspec/ops/attention.py), checked for what
// shapes and dtypes can tell, as the kernels of any device take it.
#pragma once
#include <ATen/ops/empty.h>
#include <trtspec/attention.hpp>

#include <optional>
#include <utility>

#include "checks.hpp"

namespace trtspec {

class AttentionCall {
 public:
  AttentionCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& positions,
                const at::Tensor& slot_mapping, const at::Tensor& block_tables,
                const at::Tensor& query_start, const at::Tensor& context_lens,
                const at::Tensor& is_tree, const at::Tensor& tree_mask, double scale,
                int64_t sliding_window, double soft_cap, const std::optional<at::Tensor>& sinks,
                const at::Tensor& k_scale = {}, const at::Tensor& v_scale = {})
      : k_cache_(k_cache),
        v_cache_(v_cache),
        k_scale_(k_scale),
        v_scale_(v_scale),
        scale_(float(scale)),
        window_(sliding_window),
        soft_cap_(float(soft_cap)) {
    check_dim(kOp, "q", q, 3);
    check_dim(kOp, "k", k, 3);
    check_dim(kOp, "k_cache", k_cache, 4);
    const int64_t rows = q.size(0);
    const int64_t kv_heads = k.size(1);
    const int64_t head_dim = q.size(2);
    TORCH_CHECK(kv_heads > 0 && q.size(1) % kv_heads == 0, kOp, ": ", q.size(1),
                " query heads are not a multiple of ", kv_heads, " kv heads");
    reads_only_ = k.size(0) == 0;
    check_shape(kOp, "k", k, {reads_only_ ? 0 : rows, kv_heads, head_dim});
    check_shape(kOp, "v", v, k.sizes());
    check_shape(kOp, "k_cache", k_cache, {k_cache.size(0), k_cache.size(1), kv_heads, head_dim});
    check_shape(kOp, "v_cache", v_cache, k_cache.sizes());
    for (const auto& [name, tensor] : {std::pair<const char*, const at::Tensor&>{"k", k},
                                       {"v", v},
                                       {"k_cache", k_cache},
                                       {"v_cache", v_cache}}) {
      const bool is_scaled = k_scale.defined() && tensor.dim() == 4;
      check_dtype(kOp, name, tensor, is_scaled ? at::kChar : q.scalar_type());
      check_device(kOp, name, tensor, q);
    }
    if (k_scale.defined()) {
      for (const at::Tensor& scale : {k_scale, v_scale}) {
        check_shape(kOp, "a scale", scale, {k_cache.size(0), k_cache.size(1), kv_heads, 1});
        check_dtype(kOp, "a scale", scale, at::kFloat);
        check_device(kOp, "a scale", scale, q);
        TORCH_CHECK(scale.is_contiguous(), kOp, ": scales must be contiguous");
      }
    }
    TORCH_CHECK(k_cache.is_contiguous() && v_cache.is_contiguous(), kOp,
                ": k_cache and v_cache must be contiguous");
    check_dim(kOp, "context_lens", context_lens, 1);
    const int64_t requests = context_lens.size(0);
    check_dim(kOp, "block_tables", block_tables, 2);
    check_dim(kOp, "tree_mask", tree_mask, 2);
    const auto packed = [&](const char* name, const at::Tensor& x, at::IntArrayRef shape,
                            at::ScalarType dtype) {
      check_shape(kOp, name, x, shape);
      check_dtype(kOp, name, x, dtype);
      check_device(kOp, name, x, q);
      return x.contiguous();
    };
    positions_ = packed("positions", positions, {rows}, at::kLong);
    slot_mapping_ = packed("slot_mapping", slot_mapping, {rows}, at::kLong);
    block_tables_ =
        packed("block_tables", block_tables, {requests, block_tables.size(1)}, at::kInt);
    query_start_ = packed("query_start", query_start, {requests + 1}, at::kInt);
    context_lens_ = packed("context_lens", context_lens, {requests}, at::kInt);
    is_tree_ = packed("is_tree", is_tree, {requests}, at::kBool);
    tree_mask_ = packed("tree_mask", tree_mask, {rows, tree_mask.size(1)}, at::kLong);
    TORCH_CHECK(sliding_window >= 0, kOp, ": sliding_window must be 0 (none) or more, got ",
                sliding_window);
    TORCH_CHECK(soft_cap >= 0, kOp, ": soft_cap must be 0 (none) or more, got ", soft_cap);
    if (sinks.has_value()) sinks_ = packed("sinks", *sinks, {q.size(1)}, at::kFloat);
    q_ = packed_rows(q);
    k_ = packed_rows(k);
    v_ = packed_rows(v);
    out_ = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  }

  // Views of this object's tensors.
  AttentionParams params() const {
    return {
        .q = q_.const_data_ptr(),
        .k = reads_only_ ? nullptr : k_.const_data_ptr(),
        .v = reads_only_ ? nullptr : v_.const_data_ptr(),
        .q_stride = q_.stride(0),
        .k_stride = k_.stride(0),
        .v_stride = v_.stride(0),
        .k_cache = k_cache_.mutable_data_ptr(),
        .v_cache = v_cache_.mutable_data_ptr(),
        .out = out_.mutable_data_ptr(),
        .dtype = kernel_dtype(kOp, "q", q_.scalar_type()),
        .rows = q_.size(0),
        .requests = context_lens_.size(0),
        .heads = q_.size(1),
        .kv_heads = k_.size(1),
        .head_dim = q_.size(2),
        .num_blocks = k_cache_.size(0),
        .block_size = k_cache_.size(1),
        .table_width = block_tables_.size(1),
        .mask_words = tree_mask_.size(1),
        .positions = positions_.const_data_ptr<int64_t>(),
        .slot_mapping = slot_mapping_.const_data_ptr<int64_t>(),
        .block_tables = block_tables_.const_data_ptr<int32_t>(),
        .query_start = query_start_.const_data_ptr<int32_t>(),
        .context_lens = context_lens_.const_data_ptr<int32_t>(),
        .is_tree = is_tree_.const_data_ptr<bool>(),
        .tree_mask = tree_mask_.const_data_ptr<int64_t>(),
        .scale = scale_,
        .sliding_window = window_,
        .soft_cap = soft_cap_,
        .sinks = sinks_.defined() ? sinks_.const_data_ptr<float>() : nullptr,
        .k_scale = k_scale_.defined() ? k_scale_.mutable_data_ptr<float>() : nullptr,
        .v_scale = v_scale_.defined() ? v_scale_.mutable_data_ptr<float>() : nullptr,
    };
  }

  const at::Tensor& out() const { return out_; }

 private:
  static constexpr const char* kOp = "paged_tree_attention";

  // Rows may lie apart, as in a view of a fused projection, but heads and elements must be packed.
  static at::Tensor packed_rows(const at::Tensor& x) {
    const bool packed =
        (x.size(2) == 1 || x.stride(2) == 1) && (x.size(1) == 1 || x.stride(1) == x.size(2));
    return packed ? x : x.contiguous();
  }

  at::Tensor q_, k_, v_, k_cache_, v_cache_, k_scale_, v_scale_;
  at::Tensor positions_, slot_mapping_, block_tables_, query_start_, context_lens_, is_tree_;
  at::Tensor tree_mask_, sinks_, out_;
  float scale_;
  int64_t window_;
  float soft_cap_;
  bool reads_only_;
};

}  // namespace trtspec
