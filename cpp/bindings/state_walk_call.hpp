// The states of a call's requests (contract: trtspec/ops/state_walk.py), checked for what shapes and
// dtypes can tell.
#pragma once
#include <ATen/core/Tensor.h>
#include <trtspec/state_walk.hpp>

#include "checks.hpp"

namespace trtspec {

class StateWalkCall {
 public:
  // `like`: a tensor of the call, on whose device the others must be.
  StateWalkCall(const char* op, const at::Tensor& like, int64_t rows, const at::Tensor& state_slots,
                const at::Tensor& query_start, const at::Tensor& context_lens,
                const at::Tensor& is_tree, const at::Tensor& tree_mask)
      : rows_(rows) {
    check_dim(op, "state_slots", state_slots, 1);
    check_dim(op, "tree_mask", tree_mask, 2);
    const int64_t requests = state_slots.size(0);
    const auto packed = [&](const char* name, const at::Tensor& x, at::IntArrayRef shape,
                            at::ScalarType dtype) {
      check_shape(op, name, x, shape);
      check_dtype(op, name, x, dtype);
      check_device(op, name, x, like);
      return x.contiguous();
    };
    state_slots_ = packed("state_slots", state_slots, {requests}, at::kInt);
    query_start_ = packed("query_start", query_start, {requests + 1}, at::kInt);
    context_lens_ = packed("context_lens", context_lens, {requests}, at::kInt);
    is_tree_ = packed("is_tree", is_tree, {requests}, at::kBool);
    tree_mask_ = packed("tree_mask", tree_mask, {rows, tree_mask.size(1)}, at::kLong);
  }

  // Views of this object's tensors, over so many states and rows that are kept.
  StateWalk walk(int64_t num_states, int64_t kept_rows) const {
    return {
        .rows = rows_,
        .requests = state_slots_.size(0),
        .num_states = num_states,
        .kept_rows = kept_rows,
        .mask_words = tree_mask_.size(1),
        .state_slots = state_slots_.const_data_ptr<int32_t>(),
        .query_start = query_start_.const_data_ptr<int32_t>(),
        .context_lens = context_lens_.const_data_ptr<int32_t>(),
        .is_tree = is_tree_.const_data_ptr<bool>(),
        .tree_mask = tree_mask_.const_data_ptr<int64_t>(),
    };
  }

 private:
  int64_t rows_;
  at::Tensor state_slots_, query_start_, context_lens_, is_tree_, tree_mask_;
};

// A buffer of a cache, which is written in place.
inline void check_buffer(const char* op, const char* name, const at::Tensor& buffer,
                         at::IntArrayRef shape, at::ScalarType dtype, const at::Tensor& like) {
  check_shape(op, name, buffer, shape);
  check_dtype(op, name, buffer, dtype);
  check_device(op, name, buffer, like);
  TORCH_CHECK(buffer.is_contiguous(), op, ": ", name, " must be contiguous");
}

}  // namespace trtspec
