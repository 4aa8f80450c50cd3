// trtspec::mask_logits (contract: trtspec/ops/logits_mask.py).
#include <torch/library.h>

#include "logits_mask_call.hpp"

namespace {

using Optional = std::optional<at::Tensor>;

void mask_logits(at::Tensor& logits, const Optional& allowed, const Optional& bias_rows,
                 const Optional& bias_ids, const Optional& bias_values) {
  trtspec::check_masked(logits);
  const int64_t rows = logits.size(0);
  const trtspec::LogitsMaskCall call(logits, rows, allowed, bias_rows, bias_ids, bias_values);
  call.check_rows(rows);
  trtspec::mask_logits(logits.mutable_data_ptr<float>(), rows, logits.size(1), call.mask());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "mask_logits(Tensor(a!) logits, Tensor? allowed=None, Tensor? bias_rows=None, "
      "Tensor? bias_ids=None, Tensor? bias_values=None) -> ()");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("mask_logits", &mask_logits); }
