// A call of mamba2 (contract: trtspec/ops/mamba2.py), checked for what shapes and dtypes can tell, as
// parameters of a kernel of any device.
#pragma once
#include <ATen/ops/empty.h>
#include <trtspec/mamba2.hpp>

#include <utility>

#include "state_walk_call.hpp"

namespace trtspec {

class Mamba2Call {
 public:
  Mamba2Call(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& gate,
             const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& skip,
             const at::Tensor& state, const at::Tensor& kept, const at::Tensor& state_slots,
             const at::Tensor& query_start, const at::Tensor& context_lens,
             const at::Tensor& is_tree, const at::Tensor& tree_mask, int64_t groups, double dt_min,
             double dt_max)
      : state_(state),
        kept_(kept),
        groups_(groups),
        dt_min_(float(dt_min)),
        dt_max_(float(dt_max)),
        walk_(kOp, xbc, xbc.size(0), state_slots, query_start, context_lens, is_tree, tree_mask) {
    check_dim(kOp, "xbc", xbc, 2);
    check_dim(kOp, "dt", dt, 2);
    check_dim(kOp, "gate", gate, 2);
    check_dim(kOp, "state", state, 3);
    check_dim(kOp, "kept", kept, 3);
    const int64_t rows = xbc.size(0), inner = gate.size(1);
    heads_ = dt.size(1);
    TORCH_CHECK(groups >= 1 && heads_ >= 1 && heads_ % groups == 0 && inner % heads_ == 0, kOp,
                ": ", heads_, " heads are no multiple of ", groups, " groups, or do not share ",
                inner, " columns");
    head_dim_ = inner / heads_;
    state_size_ = (xbc.size(1) - inner) / (2 * groups);
    const at::ScalarType type = xbc.scalar_type();
    check_shape(kOp, "xbc", xbc, {rows, inner + 2 * groups * state_size_});
    const std::pair<const char*, const at::Tensor&> of_rows[] = {{"dt", dt}, {"gate", gate}};
    for (const auto& [name, tensor] : of_rows) {
      check_shape(kOp, name, tensor, {rows, tensor.size(1)});
      check_dtype(kOp, name, tensor, type);
      check_device(kOp, name, tensor, xbc);
    }
    const auto constant = [&](const char* name, const at::Tensor& given) {
      check_shape(kOp, name, given, {heads_});
      check_dtype(kOp, name, given, at::kFloat);
      check_device(kOp, name, given, xbc);
      return given.contiguous();
    };
    a_log_ = constant("a_log", a_log);
    dt_bias_ = constant("dt_bias", dt_bias);
    skip_ = constant("skip", skip);
    check_buffer(kOp, "state", state, {state.size(0), heads_, state_size_ * head_dim_}, at::kFloat,
                 xbc);
    check_buffer(kOp, "kept", kept, {kept.size(0), 1, heads_}, type, xbc);
    xbc_ = xbc.contiguous();
    dt_ = side_by_side(dt);
    gate_ = side_by_side(gate);
    out_ = at::empty({rows, inner}, xbc.options());
  }

  const at::Tensor& out() const { return out_; }

  // Views of this object's tensors.
  Mamba2Params params() const {
    return {
        .xbc = xbc_.const_data_ptr(),
        .dt = dt_.const_data_ptr(),
        .dt_row_stride = dt_.stride(0),
        .gate = gate_.const_data_ptr(),
        .gate_row_stride = gate_.stride(0),
        .kept = kept_.mutable_data_ptr(),
        .out = out_.mutable_data_ptr(),
        .dtype = kernel_dtype(kOp, "xbc", xbc_.scalar_type()),
        .a_log = a_log_.const_data_ptr<float>(),
        .dt_bias = dt_bias_.const_data_ptr<float>(),
        .skip = skip_.const_data_ptr<float>(),
        .dt_min = dt_min_,
        .dt_max = dt_max_,
        .state = state_.mutable_data_ptr<float>(),
        .heads = heads_,
        .head_dim = head_dim_,
        .groups = groups_,
        .state_size = state_size_,
        .walk = walk_.walk(state_.size(0), kept_.size(0)),
    };
  }

 private:
  static constexpr const char* kOp = "mamba2";

  static at::Tensor side_by_side(const at::Tensor& x) {
    return x.size(1) == 1 || x.stride(1) == 1 ? x : x.contiguous();
  }

  at::Tensor state_, kept_, xbc_, dt_, gate_, a_log_, dt_bias_, skip_, out_;
  int64_t groups_, heads_, head_dim_, state_size_;
  float dt_min_, dt_max_;
  StateWalkCall walk_;
};

}  // namespace trtspec
