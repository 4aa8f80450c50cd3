// trtspec::accept (contract: trtspec/ops/acceptance.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/acceptance.hpp>

#include <algorithm>
#include <tuple>

#include "checks.hpp"

namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> accept(const Tensor& sampled, const Tensor& tokens,
                                  const Tensor& parents, const Tensor& row_start) {
  const auto vector = [](const char* name, const Tensor& x, at::ScalarType dtype) {
    trtspec::check_dim("accept", name, x, 1);
    trtspec::check_dtype("accept", name, x, dtype);
    return x.contiguous();
  };
  const Tensor row_sampled = vector("sampled", sampled, at::kLong);
  const Tensor row_tokens = vector("tokens", tokens, at::kLong);
  const Tensor row_parents = vector("parents", parents, at::kInt);
  const Tensor starts = vector("row_start", row_start, at::kInt);
  const int64_t rows = sampled.size(0);
  trtspec::check_shape("accept", "tokens", tokens, {rows});
  trtspec::check_shape("accept", "parents", parents, {rows});
  TORCH_CHECK(row_start.size(0) >= 1,
              "accept: row_start must have one entry more than there are requests, got none");
  const int64_t requests = row_start.size(0) - 1;
  const int32_t* start = starts.const_data_ptr<int32_t>();
  TORCH_CHECK(start[0] == 0 && start[requests] == rows, "accept: row_start must run from 0 to the ",
              rows, " rows, got ", start[0], " to ", start[requests]);
  int64_t width = 0;
  for (int64_t b = 0; b < requests; ++b) {
    TORCH_CHECK(start[b + 1] > start[b], "accept: request ", b,
                " must have at least its root row, got ", start[b + 1] - start[b], " rows");
    width = std::max<int64_t>(width, start[b + 1] - start[b]);
  }
  Tensor accepted_rows = at::empty({requests, width}, sampled.options().dtype(at::kInt));
  Tensor num_emitted = at::empty({requests}, sampled.options().dtype(at::kInt));
  const int64_t wrong = trtspec::accept(
      row_sampled.const_data_ptr<int64_t>(), row_tokens.const_data_ptr<int64_t>(),
      row_parents.const_data_ptr<int32_t>(), start, requests, width,
      accepted_rows.mutable_data_ptr<int32_t>(), num_emitted.mutable_data_ptr<int32_t>());
  TORCH_CHECK(wrong < 0, "accept: request ", wrong,
              " has a node whose parent is not an earlier row of the request");
  return {accepted_rows, num_emitted};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "accept(Tensor sampled, Tensor tokens, Tensor parents, Tensor row_start) "
      "-> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("accept", &accept); }
