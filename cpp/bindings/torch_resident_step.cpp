// trtspec::pack_verify, pack_rollout and advance (contract: trtspec/ops/resident_step.py).
#include <torch/library.h>
#include <trtspec/resident_step.hpp>

#include <vector>

#include "resident_step_call.hpp"

namespace {

using at::Tensor;

// The kernels of this device look at values, and complain.
void check_fits(const char* op, int64_t wrong) {
  TORCH_CHECK(wrong < 0, op, ": the rows of item ", wrong,
              " do not fit its blocks, or the rows of the call");
}

std::vector<Tensor> pack_verify(const Tensor& state, const Tensor& filters, const Tensor& ends,
                                const Tensor& tables, const Tensor& items, const Tensor& chunk,
                                const Tensor& draft_tokens, const Tensor& draft_parents,
                                const Tensor& draft_scores, int64_t behind, int64_t rows,
                                int64_t logits, int64_t tokens_per_block, int64_t mask_words) {
  trtspec::PackVerifyCall call(state, filters, ends, tables, items, chunk, draft_tokens,
                               draft_parents, draft_scores, behind, rows, logits, tokens_per_block,
                               mask_words);
  check_fits("pack_verify", trtspec::pack_verify(call.params));
  return call.outputs;
}

std::vector<Tensor> pack_rollout(const Tensor& state, const Tensor& filters, const Tensor& tables,
                                 const Tensor& pairs, const Tensor& items, int64_t behind,
                                 int64_t rows, int64_t tokens_per_block, int64_t mask_words) {
  trtspec::PackRolloutCall call(state, filters, tables, pairs, items, behind, rows,
                                tokens_per_block, mask_words);
  check_fits("pack_rollout", trtspec::pack_rollout(call.params));
  return call.outputs;
}

std::vector<Tensor> advance(const Tensor& state, const Tensor& pairs, const Tensor& ends,
                            const Tensor& tables, const Tensor& items, const Tensor& chunk,
                            const Tensor& query_start, const Tensor& row_start,
                            const Tensor& tokens, const Tensor& parents, const Tensor& sampled,
                            const Tensor& accepted_rows, const Tensor& num_emitted,
                            int64_t tokens_per_block, int64_t behind, int64_t not_final) {
  trtspec::AdvanceCall call(state, pairs, ends, tables, items, chunk, query_start, row_start,
                            tokens, parents, sampled, accepted_rows, num_emitted, tokens_per_block,
                            behind, not_final);
  trtspec::advance(call.params);
  return call.outputs;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "pack_verify(Tensor state, Tensor filters, Tensor ends, Tensor tables, Tensor items, "
      "Tensor chunk, Tensor draft_tokens, Tensor draft_parents, Tensor draft_scores, int behind, "
      "int rows, int logits, int tokens_per_block, int mask_words) -> Tensor[]");
  m.def(
      "pack_rollout(Tensor state, Tensor filters, Tensor tables, Tensor pairs, Tensor items, "
      "int behind, int rows, int tokens_per_block, int mask_words) -> Tensor[]");
  m.def(
      "advance(Tensor(a!) state, Tensor(b!) pairs, Tensor ends, Tensor tables, Tensor items, "
      "Tensor chunk, Tensor query_start, Tensor row_start, Tensor tokens, Tensor parents, "
      "Tensor sampled, Tensor accepted_rows, Tensor num_emitted, int tokens_per_block, "
      "int behind, int not_final) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("pack_verify", &pack_verify);
  m.impl("pack_rollout", &pack_rollout);
  m.impl("advance", &advance);
}
