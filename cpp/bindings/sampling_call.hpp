// Calls of trtspec::sample and trtspec::draft_candidates (contract: trtspec/ops/sampling.py),
// checked, as the kernels of any device take them.
#pragma once
#include <ATen/core/Tensor.h>
#include <trtspec/sampling.hpp>

#include <optional>

#include "checks.hpp"

namespace trtspec {

// Logits and the values of their rows, contiguous; a kernel's view lives as long as this does.
class SamplingCall {
 public:
  SamplingCall(const char* op, const at::Tensor& logits, const at::Tensor& temperature,
               const at::Tensor& top_k, const at::Tensor& top_p, const at::Tensor& min_p,
               const at::Tensor& seed, const at::Tensor& sample_index,
               const at::Tensor& output_index) {
    check_dim(op, "logits", logits, 2);
    check_dtype(op, "logits", logits, at::kFloat);
    TORCH_CHECK(logits.size(1) > 0 && logits.size(1) < (int64_t{1} << 22), op,
                ": the vocabulary must have 1 to 2^22 - 1 tokens, got ", logits.size(1));
    const auto row = [&](const char* name, const at::Tensor& x, at::ScalarType dtype) {
      check_shape(op, name, x, {logits.size(0)});
      check_dtype(op, name, x, dtype);
      check_device(op, name, x, logits);
      return x.contiguous();
    };
    logits_ = logits.contiguous();
    temperature_ = row("temperature", temperature, at::kFloat);
    top_k_ = row("top_k", top_k, at::kInt);
    top_p_ = row("top_p", top_p, at::kFloat);
    min_p_ = row("min_p", min_p, at::kFloat);
    seed_ = row("seed", seed, at::kLong);
    sample_index_ = row("sample_index", sample_index, at::kLong);
    output_index_ = row("output_index", output_index, at::kLong);
  }

  const float* logits() const { return logits_.const_data_ptr<float>(); }
  int64_t rows() const { return logits_.size(0); }
  int64_t vocab() const { return logits_.size(1); }

  SamplingRows params() const {
    return {temperature_.const_data_ptr<float>(),   top_k_.const_data_ptr<int32_t>(),
            top_p_.const_data_ptr<float>(),         min_p_.const_data_ptr<float>(),
            seed_.const_data_ptr<int64_t>(),        sample_index_.const_data_ptr<int64_t>(),
            output_index_.const_data_ptr<int64_t>()};
  }

 private:
  at::Tensor logits_, temperature_, top_k_, top_p_, min_p_, seed_, sample_index_, output_index_;
};

// The token map of draft_candidates, contiguous; undefined where there is none.
inline at::Tensor checked_token_map(const std::optional<at::Tensor>& token_map,
                                    const at::Tensor& logits) {
  if (!token_map) return {};
  check_shape("draft_candidates", "token_map", *token_map, {logits.size(1)});
  check_dtype("draft_candidates", "token_map", *token_map, at::kLong);
  check_device("draft_candidates", "token_map", *token_map, logits);
  return token_map->contiguous();
}

}  // namespace trtspec
