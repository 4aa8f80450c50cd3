#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/head_products.hpp>

#include "checks.hpp"
#include "shim.hpp"

namespace {

at::Tensor head_products(const at::Tensor& x, const at::Tensor& weight) {
  constexpr const char* op = "head_products";
  trtspec::check_dim(op, "x", x, 3);
  trtspec::check_dim(op, "weight", weight, 3);
  trtspec::check_shape(op, "weight", weight, {x.size(1), x.size(2), weight.size(2)});
  trtspec::check_dtype(op, "weight", weight, x.scalar_type());
  trtspec::check_device(op, "weight", weight, x);
  const at::Tensor packed = x.size(2) == 1 || x.stride(2) == 1 ? x : x.contiguous();
  const at::Tensor matrices = weight.contiguous();
  at::Tensor out = at::empty({x.size(0), x.size(1), weight.size(2)}, x.options());
  trtspec::head_products({
      .x = packed.const_data_ptr(),
      .x_row_stride = packed.stride(0),
      .x_head_stride = packed.stride(1),
      .weight = matrices.const_data_ptr(),
      .out = out.mutable_data_ptr(),
      .dtype = trtspec::kernel_dtype(op, "x", x.scalar_type()),
      .rows = x.size(0),
      .heads = x.size(1),
      .inputs = x.size(2),
      .outputs = weight.size(2),
  });
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_head_products(AtenTensorHandle x,
                                                                         AtenTensorHandle weight,
                                                                         AtenTensorHandle* result) {
  return trtspec::run_shim(
      result, [&] { return head_products(trtspec::tensor(x), trtspec::tensor(weight)); });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) { m.def("head_products(Tensor x, Tensor weight) -> Tensor"); }

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("head_products", &head_products); }
