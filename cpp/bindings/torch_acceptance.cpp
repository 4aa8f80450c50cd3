// trtspec::accept (contract: trtspec/ops/acceptance.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/acceptance.hpp>

#include <algorithm>
#include <tuple>

#include "acceptance_call.hpp"

namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> accept(const Tensor& sampled, const Tensor& tokens,
                                  const Tensor& parents, const Tensor& row_start,
                                  const std::optional<Tensor>& forced) {
  const trtspec::AcceptanceCall call(sampled, tokens, parents, row_start, forced);
  const int64_t rows = call.rows();
  const int64_t requests = call.requests();
  const int32_t* start = call.row_start.const_data_ptr<int32_t>();
  TORCH_CHECK(start[0] == 0 && start[requests] == rows, "accept: row_start must run from 0 to the ",
              rows, " rows, got ", start[0], " to ", start[requests]);
  int64_t width = 0;
  for (int64_t b = 0; b < requests; ++b) {
    TORCH_CHECK(start[b + 1] >= start[b], "accept: row_start must not fall, but request ", b,
                " has ", start[b + 1] - start[b], " rows");
    width = std::max<int64_t>(width, start[b + 1] - start[b]);
  }
  Tensor accepted_rows = at::empty({requests, width}, sampled.options().dtype(at::kInt));
  Tensor num_emitted = at::empty({requests}, sampled.options().dtype(at::kInt));
  const int64_t wrong =
      trtspec::accept(call.sampled.const_data_ptr<int64_t>(), call.tokens.const_data_ptr<int64_t>(),
                      call.parents.const_data_ptr<int32_t>(), start, requests, width,
                      accepted_rows.mutable_data_ptr<int32_t>(),
                      num_emitted.mutable_data_ptr<int32_t>(), call.forced_data());
  TORCH_CHECK(wrong < 0, "accept: request ", wrong,
              " has a node whose parent is not an earlier row of the request");
  return {accepted_rows, num_emitted};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "accept(Tensor sampled, Tensor tokens, Tensor parents, Tensor row_start, "
      "Tensor? forced=None) "
      "-> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("accept", &accept); }
