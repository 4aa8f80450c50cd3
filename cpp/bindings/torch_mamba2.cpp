#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/mamba2.hpp>

#include <utility>

#include "shim.hpp"
#include "state_walk_call.hpp"

namespace {

at::Tensor mamba2(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& gate,
                  const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& skip,
                  at::Tensor& state, at::Tensor& kept, const at::Tensor& state_slots,
                  const at::Tensor& query_start, const at::Tensor& context_lens,
                  const at::Tensor& is_tree, const at::Tensor& tree_mask, int64_t groups,
                  double dt_min, double dt_max) {
  constexpr const char* op = "mamba2";
  trtspec::check_dim(op, "xbc", xbc, 2);
  trtspec::check_dim(op, "dt", dt, 2);
  trtspec::check_dim(op, "gate", gate, 2);
  trtspec::check_dim(op, "state", state, 3);
  trtspec::check_dim(op, "kept", kept, 3);
  const int64_t rows = xbc.size(0);
  const int64_t heads = dt.size(1);
  const int64_t inner = gate.size(1);
  TORCH_CHECK(groups >= 1 && heads >= 1 && heads % groups == 0 && inner % heads == 0, op, ": ",
              heads, " heads are no multiple of ", groups, " groups, or do not share ", inner,
              " columns");
  const int64_t state_size = (xbc.size(1) - inner) / (2 * groups);
  const at::ScalarType type = xbc.scalar_type();
  trtspec::check_shape(op, "xbc", xbc, {rows, inner + 2 * groups * state_size});
  const std::pair<const char*, const at::Tensor&> of_rows[] = {{"dt", dt}, {"gate", gate}};
  for (const auto& [name, tensor] : of_rows) {
    trtspec::check_shape(op, name, tensor, {rows, tensor.size(1)});
    trtspec::check_dtype(op, name, tensor, type);
    trtspec::check_device(op, name, tensor, xbc);
  }
  const std::pair<const char*, const at::Tensor&> of_heads[] = {
      {"a_log", a_log}, {"dt_bias", dt_bias}, {"skip", skip}};
  for (const auto& [name, tensor] : of_heads) {
    trtspec::check_shape(op, name, tensor, {heads});
    trtspec::check_dtype(op, name, tensor, at::kFloat);
    trtspec::check_device(op, name, tensor, xbc);
    TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
  }
  trtspec::check_buffer(op, "state", state, {state.size(0), heads, state_size * inner / heads},
                        at::kFloat, xbc);
  trtspec::check_buffer(op, "kept", kept, {kept.size(0), 1, heads}, type, xbc);
  const trtspec::StateWalkCall call(op, xbc, rows, state_slots, query_start, context_lens, is_tree,
                                    tree_mask);
  const auto side_by_side = [](const at::Tensor& x) {
    return x.size(1) == 1 || x.stride(1) == 1 ? x : x.contiguous();
  };
  const at::Tensor packed = xbc.contiguous();
  const at::Tensor steps = side_by_side(dt);
  const at::Tensor gates = side_by_side(gate);
  at::Tensor out = at::empty({rows, inner}, xbc.options());
  trtspec::mamba2({
      .xbc = packed.const_data_ptr(),
      .dt = steps.const_data_ptr(),
      .dt_row_stride = steps.stride(0),
      .gate = gates.const_data_ptr(),
      .gate_row_stride = gates.stride(0),
      .kept = kept.mutable_data_ptr(),
      .out = out.mutable_data_ptr(),
      .dtype = trtspec::kernel_dtype(op, "xbc", type),
      .a_log = a_log.const_data_ptr<float>(),
      .dt_bias = dt_bias.const_data_ptr<float>(),
      .skip = skip.const_data_ptr<float>(),
      .dt_min = float(dt_min),
      .dt_max = float(dt_max),
      .state = state.mutable_data_ptr<float>(),
      .heads = heads,
      .head_dim = inner / heads,
      .groups = groups,
      .state_size = state_size,
      .walk = call.walk(state.size(0), kept.size(0)),
  });
  return out;
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
