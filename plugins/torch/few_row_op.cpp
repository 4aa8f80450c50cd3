// few_row_linear (trtspec/ops/few_row_linear.py) on CUDA tensors: the kernels for few rows, and
// torch's product above.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "../../cpp/bindings/checks.hpp"
#include "../kernels.hpp"

namespace {

using at::Tensor;
using trtspec::check_device, trtspec::check_dim, trtspec::check_dtype, trtspec::check_shape;
using trtspec::cuda::FewRowParams, trtspec::cuda::WeightValues;

constexpr const char* kOp = "few_row_linear";
constexpr int64_t kTile = 16;  // outputs of gates, and of what they are for

// The arguments, checked and contiguous, and the params that point into them.
struct FewRowCall {
  Tensor x, weight, bias, scales, zeros, offsets, residual, out;
  FewRowParams params{};

  FewRowCall(const Tensor& x_, const Tensor& weight_, const std::optional<Tensor>& bias_,
             int64_t out_features, int64_t values, int64_t group_size,
             std::optional<at::ScalarType> out_dtype, const std::optional<Tensor>& scales_,
             const std::optional<Tensor>& zeros_, const std::optional<Tensor>& offsets_,
             bool swiglu, const std::optional<Tensor>& residual_) {
    check_dim(kOp, "x", x_, 2);
    TORCH_CHECK(values >= 0 && values <= int64_t(WeightValues::e2m1), kOp, ": values must be 0 to ",
                int64_t(WeightValues::e2m1), ", got ", values);
    TORCH_CHECK(!swiglu || out_features % (2 * kTile) == 0, kOp, ": with swiglu out_features must ",
                "be a multiple of ", 2 * kTile, ", got ", out_features);
    params.rows = x_.size(0);
    params.in_features = x_.size(1);
    params.out_features = out_features;
    params.group_size = group_size;
    params.values = WeightValues(values);
    params.swiglu = swiglu;
    const auto type = x_.scalar_type();
    const auto out_type = out_dtype.value_or(type);
    params.dtype = trtspec::kernel_dtype(kOp, "x", type);
    params.out_dtype = trtspec::kernel_dtype(kOp, "out_dtype", out_type);
    out = at::empty({x_.size(0), swiglu ? out_features / 2 : out_features},
                    x_.options().dtype(out_type));
    x = aligned(x_);
    params.x = x.const_data_ptr();
    if (params.values == WeightValues::rows) {
      params.weight = taken("weight", weight_, {out_features, x.size(1)}, type, weight);
    } else {
      take_packed(weight_, scales_, zeros_, offsets_);
    }
    if (bias_) params.bias = taken("bias", *bias_, {out_features}, type, bias);
    if (residual_) {
      params.residual = taken("residual", *residual_, out.sizes(), out_type, residual);
    }
    params.out = out.mutable_data_ptr();
  }

 private:
  void take_packed(const Tensor& weight_, const std::optional<Tensor>& scales_,
                   const std::optional<Tensor>& zeros_, const std::optional<Tensor>& offsets_) {
    const int64_t group = params.group_size, depth = x.size(1);
    TORCH_CHECK(
        group == 0 || group == 16 || group == 32 || group == 64 || group == 128 || group == 256,
        kOp, ": group_size must be 0, 16, 32, 64, 128 or 256, got ", group);
    TORCH_CHECK(params.dtype != trtspec::DType::f32 && depth > 0, kOp, ": packed weights are ",
                "multiplied by bfloat16 or float16, got x of ", x.scalar_type(), " with shape ",
                x.sizes());
    TORCH_CHECK(scales_.has_value() && !(zeros_ && offsets_), kOp,
                ": packed weights need scales, and have zeros or offsets, not both");
    const bool four = params.values == WeightValues::int4 || params.values == WeightValues::e2m1;
    const int64_t tiles = (params.out_features + kTile - 1) / kTile;
    const int64_t groups = group == 0 ? 1 : (depth + group - 1) / group;
    params.weight = taken("weight", weight_, {tiles, (depth + 63) / 64, four ? 1 : 2, 32, 16},
                          at::kByte, weight);
    const int64_t shape[] = {tiles, groups, kTile};
    params.scale_dtype = trtspec::kernel_dtype(kOp, "scales", scales_->scalar_type());
    params.scales = taken("scales", *scales_, shape, scales_->scalar_type(), scales);
    if (zeros_) {
      params.zeros = static_cast<const int8_t*>(taken("zeros", *zeros_, shape, at::kChar, zeros));
    }
    if (offsets_) {
      params.offsets = taken("offsets", *offsets_, shape, scales_->scalar_type(), offsets);
    }
  }

  const void* taken(const char* name, const Tensor& given, at::IntArrayRef shape,
                    at::ScalarType dtype, Tensor& kept) {
    check_shape(kOp, name, given, shape);
    check_dtype(kOp, name, given, dtype);
    check_device(kOp, name, given, x);
    kept = aligned(given);
    return kept.const_data_ptr();
  }

  // Copies are of 16 bytes.
  static Tensor aligned(const Tensor& given) {
    const Tensor found = given.contiguous();
    const auto address = reinterpret_cast<std::uintptr_t>(found.const_data_ptr());
    return address % 16 == 0 ? found : found.clone();
  }
};

Tensor empty_bytes(std::size_t bytes, const Tensor& like) {
  return at::empty({int64_t(bytes)}, like.options().dtype(at::kByte));
}

// The same by torch's product.
Tensor many_rows(FewRowCall& call, cudaStream_t stream) {
  Tensor weight = call.weight;
  if (call.params.values != WeightValues::rows) {
    weight = at::empty({call.params.out_features, call.x.size(1)}, call.x.options());
    call.params.out = weight.mutable_data_ptr();
    C10_CUDA_CHECK(trtspec::cuda::few_row_dequantise(call.params, stream));
  }
  const auto out_type = call.out.scalar_type();
  const bool is_plain = !call.params.swiglu && out_type == call.x.scalar_type();
  Tensor y;
  if (is_plain) {
    y = at::linear(call.x, weight, call.bias.defined() ? std::optional(call.bias) : std::nullopt);
  } else {  // rounded at the end alone
    y = call.x.scalar_type() == at::kFloat ? at::mm(call.x, weight.t())
                                           : at::mm(call.x, weight.t(), at::kFloat);
    if (call.bias.defined()) y = at::add(y, call.bias);
    if (call.params.swiglu) {
      const Tensor pairs = y.view({y.size(0), -1, 2, kTile});
      y = at::mul(at::silu(pairs.select(2, 0)), pairs.select(2, 1)).flatten(1);
    }
    y = y.to(out_type);
  }
  return call.residual.defined() ? at::add(call.residual, y) : y;
}

Tensor few_row_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                      int64_t out_features, int64_t values, int64_t group_size,
                      std::optional<at::ScalarType> out_dtype, const std::optional<Tensor>& scales,
                      const std::optional<Tensor>& zeros, const std::optional<Tensor>& offsets,
                      bool swiglu, const std::optional<Tensor>& residual) {
  const c10::cuda::CUDAGuard guard(x.device());
  FewRowCall call(x, weight, bias, out_features, values, group_size, out_dtype, scales, zeros,
                  offsets, swiglu, residual);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(x.get_device()).stream();
  const FewRowParams& params = call.params;
  if (params.rows > trtspec::cuda::kFewRows || params.in_features % 8 != 0 ||
      params.dtype == trtspec::DType::f32) {
    return many_rows(call, stream);
  }
  const Tensor scratch = empty_bytes(trtspec::cuda::few_row_linear_workspace(params), x);
  C10_CUDA_CHECK(trtspec::cuda::few_row_linear(params, scratch.mutable_data_ptr(), stream));
  return call.out;
}

}  // namespace

TORCH_LIBRARY_IMPL(trtspec, CUDA, m) { m.impl("few_row_linear", &few_row_linear); }
