// A call of gated_delta (contract: trtspec/ops/gated_delta.py), checked for what shapes and dtypes can
// tell, as parameters of a kernel of any device.
#pragma once
#include <ATen/ops/empty.h>
#include <trtspec/gated_delta.hpp>

#include "state_walk_call.hpp"

namespace trtspec {

class GatedDeltaCall {
 public:
  GatedDeltaCall(const at::Tensor& qkv, const at::Tensor& gates, const at::Tensor& a_log,
                 const at::Tensor& dt_bias, const at::Tensor& state, const at::Tensor& kept,
                 const at::Tensor& state_slots, const at::Tensor& query_start,
                 const at::Tensor& context_lens, const at::Tensor& is_tree,
                 const at::Tensor& tree_mask, int64_t key_dim, bool tiled)
      : state_(state),
        kept_(kept),
        key_dim_(key_dim),
        tiled_(tiled),
        walk_(kOp, qkv, qkv.size(0), state_slots, query_start, context_lens, is_tree, tree_mask) {
    check_dim(kOp, "qkv", qkv, 2);
    check_dim(kOp, "state", state, 3);
    check_dim(kOp, "kept", kept, 3);
    heads_ = state.size(1);
    TORCH_CHECK(key_dim >= 1 && heads_ >= 1 && state.size(2) % key_dim == 0, kOp,
                ": state must have heads of a multiple of key_dim ", key_dim,
                " elements, got shape ", state.sizes());
    value_dim_ = state.size(2) / key_dim;
    const int64_t keys = qkv.size(1) - heads_ * value_dim_;
    TORCH_CHECK(keys > 0 && keys % (2 * key_dim) == 0 && heads_ % (keys / (2 * key_dim)) == 0, kOp,
                ": qkv must have queries and keys of ", key_dim, " elements, of heads that ",
                heads_, " is a multiple of, before values of ", value_dim_, ", got shape ",
                qkv.sizes());
    key_heads_ = keys / (2 * key_dim);
    const at::ScalarType type = qkv.scalar_type();
    check_shape(kOp, "gates", gates, {qkv.size(0), 2 * heads_});
    check_dtype(kOp, "gates", gates, type);
    check_device(kOp, "gates", gates, qkv);
    const auto constant = [&](const char* name, const at::Tensor& given) {
      check_shape(kOp, name, given, {heads_});
      check_dtype(kOp, name, given, at::kFloat);
      check_device(kOp, name, given, qkv);
      return given.contiguous();
    };
    a_log_ = constant("a_log", a_log);
    dt_bias_ = constant("dt_bias", dt_bias);
    check_buffer(kOp, "state", state, state.sizes(), at::kFloat, qkv);
    check_buffer(kOp, "kept", kept, {kept.size(0), 1, 2 * heads_}, type, qkv);
    qkv_ = qkv.contiguous();
    gates_ = gates.contiguous();
    out_ = at::empty({qkv.size(0), heads_ * value_dim_}, qkv.options());
  }

  const at::Tensor& out() const { return out_; }

  // Views of this object's tensors.
  GatedDeltaParams params() const {
    return {
        .qkv = qkv_.const_data_ptr(),
        .gates = gates_.const_data_ptr(),
        .kept = kept_.mutable_data_ptr(),
        .out = out_.mutable_data_ptr(),
        .dtype = kernel_dtype(kOp, "qkv", qkv_.scalar_type()),
        .a_log = a_log_.const_data_ptr<float>(),
        .dt_bias = dt_bias_.const_data_ptr<float>(),
        .state = state_.mutable_data_ptr<float>(),
        .key_heads = key_heads_,
        .value_heads = heads_,
        .tiled = tiled_,
        .key_dim = key_dim_,
        .value_dim = value_dim_,
        .walk = walk_.walk(state_.size(0), kept_.size(0)),
    };
  }

 private:
  static constexpr const char* kOp = "gated_delta";

  at::Tensor state_, kept_, a_log_, dt_bias_, qkv_, gates_, out_;
  int64_t key_dim_, heads_, key_heads_, value_dim_;
  bool tiled_;
  StateWalkCall walk_;
};

}  // namespace trtspec
