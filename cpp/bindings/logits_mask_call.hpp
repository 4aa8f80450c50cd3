// A call of trtspec::mask_logits (contract: trtspec/ops/logits_mask.py), checked for what shapes
// and dtypes can tell, as the kernels of any device take it.
#pragma once
#include <ATen/core/Tensor.h>
#include <trtspec/logits_mask.hpp>

#include <optional>

#include "checks.hpp"

namespace trtspec {

// The columns, contiguous; a kernel's view lives as long as this does.
class LogitsMaskCall {
 public:
  using Optional = std::optional<at::Tensor>;

  // Of so many rows, where `logits` lie.
  LogitsMaskCall(const at::Tensor& logits, int64_t rows, const Optional& allowed,
                 const Optional& bias_rows, const Optional& bias_ids, const Optional& bias_values) {
    if (allowed) {
      check_dim(kOp, "allowed", *allowed, 2);
      check_shape(kOp, "allowed", *allowed, {rows, allowed->size(1)});
      allowed_ = checked("allowed", *allowed, at::kInt, logits);
    }
    TORCH_CHECK(bias_rows.has_value() == bias_ids.has_value() &&
                    bias_rows.has_value() == bias_values.has_value(),
                kOp, ": biases need rows, ids and values");
    if (!bias_rows) return;
    check_dim(kOp, "bias_rows", *bias_rows, 1);
    check_shape(kOp, "bias_ids", *bias_ids, bias_rows->sizes());
    check_shape(kOp, "bias_values", *bias_values, bias_rows->sizes());
    rows_ = checked("bias_rows", *bias_rows, at::kLong, logits);
    ids_ = checked("bias_ids", *bias_ids, at::kLong, logits);
    values_ = checked("bias_values", *bias_values, at::kFloat, logits);
  }

  LogitsMask mask() const {
    LogitsMask mask;
    if (allowed_.defined()) {
      mask.allowed = allowed_.const_data_ptr<int32_t>();
      mask.words = allowed_.size(1);
    }
    if (rows_.defined()) {
      mask.bias_rows = rows_.const_data_ptr<int64_t>();
      mask.bias_ids = ids_.const_data_ptr<int64_t>();
      mask.bias_values = values_.const_data_ptr<float>();
      mask.num_biases = rows_.numel();
    }
    return mask;
  }

  // On the host alone: each bias is of one of the rows.
  void check_rows(int64_t rows) const {
    const LogitsMask held = mask();
    for (int64_t i = 0; i < held.num_biases; ++i) {
      TORCH_CHECK(held.bias_rows[i] >= 0 && held.bias_rows[i] < rows, kOp, ": there are ", rows,
                  " rows, but a bias is of row ", held.bias_rows[i]);
    }
  }

 private:
  static constexpr const char* kOp = "mask_logits";

  static at::Tensor checked(const char* name, const at::Tensor& x, at::ScalarType dtype,
                            const at::Tensor& logits) {
    check_dtype(kOp, name, x, dtype);
    check_device(kOp, name, x, logits);
    return x.contiguous();
  }

  at::Tensor allowed_, rows_, ids_, values_;
};

// Logits that can be changed in place.
inline void check_masked(const at::Tensor& logits) {
  check_dim("mask_logits", "logits", logits, 2);
  check_dtype("mask_logits", "logits", logits, at::kFloat);
  TORCH_CHECK(logits.is_contiguous(), "mask_logits: the logits must be contiguous, got strides ",
              logits.strides());
}

}  // namespace trtspec
