// A call of trtspec::accept (contract: trtspec/ops/acceptance.py), checked for what shapes and
// dtypes can tell, as the kernels of any device take it.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "checks.hpp"

namespace trtspec {

struct AcceptanceCall {
  AcceptanceCall(const at::Tensor& sampled, const at::Tensor& tokens, const at::Tensor& parents,
                 const at::Tensor& row_start, const std::optional<at::Tensor>& forced = {})
      : sampled(vector("sampled", sampled, at::kLong, sampled)),
        tokens(vector("tokens", tokens, at::kLong, sampled)),
        parents(vector("parents", parents, at::kInt, sampled)),
        row_start(vector("row_start", row_start, at::kInt, sampled)) {
    check_shape("accept", "tokens", tokens, {rows()});
    check_shape("accept", "parents", parents, {rows()});
    TORCH_CHECK(row_start.size(0) >= 1,
                "accept: row_start must have one entry more than there are requests, got none");
    if (forced) {
      this->forced = vector("forced", *forced, at::kInt, sampled);
      check_shape("accept", "forced", this->forced, {requests()});
    }
  }

  int64_t rows() const { return sampled.size(0); }
  int64_t requests() const { return row_start.size(0) - 1; }

  // Null where nothing is forced.
  const int32_t* forced_data() const {
    return forced.defined() ? forced.const_data_ptr<int32_t>() : nullptr;
  }

  at::Tensor sampled, tokens, parents, row_start, forced;  // contiguous

 private:
  static at::Tensor vector(const char* name, const at::Tensor& x, at::ScalarType dtype,
                           const at::Tensor& like) {
    check_dim("accept", name, x, 1);
    check_dtype("accept", name, x, dtype);
    check_device("accept", name, x, like);
    return x.contiguous();
  }
};

}  // namespace trtspec
