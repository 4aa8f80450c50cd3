// The packed rows of a call (contract: trtspec/ops/attention.py), checked for what shapes and
// dtypes can tell.
#pragma once
#include <ATen/core/Tensor.h>
#include <trtspec/cached_rows.hpp>

#include "checks.hpp"

namespace trtspec {

class CachedRowsCall {
 public:
  // `like`: a tensor of the call, on whose device the others must be.
  CachedRowsCall(const char* op, const at::Tensor& like, int64_t rows,
                 const at::Tensor& slot_mapping, const at::Tensor& block_tables,
                 const at::Tensor& query_start, const at::Tensor& context_lens,
                 const at::Tensor& is_tree, const at::Tensor& tree_mask)
      : rows_(rows) {
    check_dim(op, "context_lens", context_lens, 1);
    check_dim(op, "block_tables", block_tables, 2);
    check_dim(op, "tree_mask", tree_mask, 2);
    const int64_t requests = context_lens.size(0);
    const auto packed = [&](const char* name, const at::Tensor& x, at::IntArrayRef shape,
                            at::ScalarType dtype) {
      check_shape(op, name, x, shape);
      check_dtype(op, name, x, dtype);
      check_device(op, name, x, like);
      return x.contiguous();
    };
    slot_mapping_ = packed("slot_mapping", slot_mapping, {rows}, at::kLong);
    block_tables_ =
        packed("block_tables", block_tables, {requests, block_tables.size(1)}, at::kInt);
    query_start_ = packed("query_start", query_start, {requests + 1}, at::kInt);
    context_lens_ = packed("context_lens", context_lens, {requests}, at::kInt);
    is_tree_ = packed("is_tree", is_tree, {requests}, at::kBool);
    tree_mask_ = packed("tree_mask", tree_mask, {rows, tree_mask.size(1)}, at::kLong);
  }

  // Views of this object's tensors, over a cache of such blocks.
  CachedRows rows(int64_t num_blocks, int64_t block_size) const {
    return {
        .rows = rows_,
        .requests = context_lens_.size(0),
        .num_blocks = num_blocks,
        .block_size = block_size,
        .table_width = block_tables_.size(1),
        .mask_words = tree_mask_.size(1),
        .slot_mapping = slot_mapping_.const_data_ptr<int64_t>(),
        .block_tables = block_tables_.const_data_ptr<int32_t>(),
        .query_start = query_start_.const_data_ptr<int32_t>(),
        .context_lens = context_lens_.const_data_ptr<int32_t>(),
        .is_tree = is_tree_.const_data_ptr<bool>(),
        .tree_mask = tree_mask_.const_data_ptr<int64_t>(),
    };
  }

 private:
  int64_t rows_;
  at::Tensor slot_mapping_, block_tables_, query_start_, context_lens_, is_tree_, tree_mask_;
};

}  // namespace trtspec
