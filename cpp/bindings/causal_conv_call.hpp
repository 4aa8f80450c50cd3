// A call of causal_conv (contract: trtspec/ops/causal_conv.py), checked for what shapes and dtypes can
// tell, as parameters of a kernel of any device.
#pragma once
#include <ATen/ops/empty.h>
#include <trtspec/causal_conv.hpp>

#include <optional>

#include "state_walk_call.hpp"

namespace trtspec {

class CausalConvCall {
 public:
  CausalConvCall(const at::Tensor& x, const at::Tensor& weight,
                 const std::optional<at::Tensor>& bias, const at::Tensor& tail,
                 const at::Tensor& kept, const at::Tensor& state_slots,
                 const at::Tensor& query_start, const at::Tensor& context_lens,
                 const at::Tensor& is_tree, const at::Tensor& tree_mask)
      : tail_(tail),
        kept_(kept),
        walk_(kOp, x, x.size(0), state_slots, query_start, context_lens, is_tree, tree_mask) {
    check_dim(kOp, "x", x, 2);
    check_dim(kOp, "weight", weight, 2);
    check_dim(kOp, "tail", tail, 3);
    check_dim(kOp, "kept", kept, 3);
    const int64_t channels = x.size(1);
    const int64_t width = weight.size(0);
    TORCH_CHECK(width >= 1, kOp, ": weight must have a row at least");
    const auto constant = [&](const char* name, const at::Tensor& given, at::IntArrayRef shape) {
      check_shape(kOp, name, given, shape);
      check_dtype(kOp, name, given, x.scalar_type());
      check_device(kOp, name, given, x);
      return given.contiguous();
    };
    weight_ = constant("weight", weight, {width, channels});
    if (bias) bias_ = constant("bias", *bias, {channels});
    check_buffer(kOp, "tail", tail, {tail.size(0), width - 1, channels}, x.scalar_type(), x);
    check_buffer(kOp, "kept", kept, {kept.size(0), 1, channels}, x.scalar_type(), x);
    x_ = channels == 1 || x.stride(1) == 1 ? x : x.contiguous();
    out_ = at::empty({x.size(0), channels}, x.options());
  }

  const at::Tensor& out() const { return out_; }

  // Views of this object's tensors.
  CausalConvParams params() const {
    return {
        .x = x_.const_data_ptr(),
        .x_row_stride = x_.stride(0),
        .weight = weight_.const_data_ptr(),
        .bias = bias_.defined() ? bias_.const_data_ptr() : nullptr,
        .tail = tail_.mutable_data_ptr(),
        .kept = kept_.mutable_data_ptr(),
        .out = out_.mutable_data_ptr(),
        .dtype = kernel_dtype(kOp, "x", x_.scalar_type()),
        .channels = out_.size(1),
        .width = weight_.size(0),
        .walk = walk_.walk(tail_.size(0), kept_.size(0)),
    };
  }

 private:
  static constexpr const char* kOp = "causal_conv";

  at::Tensor tail_, kept_, weight_, bias_, x_, out_;
  StateWalkCall walk_;
};

}  // namespace trtspec
