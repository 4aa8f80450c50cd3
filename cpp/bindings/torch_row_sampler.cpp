// RowSampler: what a step asks of the rows of its requests, as torch sees it. Logits that do not fit
// come to Python as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/sampler.hpp>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "drafts_holder.hpp"
#include "logits_mask_call.hpp"
#include "sequence_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;
using Optional = std::optional<at::Tensor>;

void sample_here(const at::Tensor& logits, const trtspec::SamplingRows& params, int64_t* ids) {
  trtspec::sample(logits.const_data_ptr<float>(), logits.size(0), logits.size(1), params, ids);
}

// The columns start, tokens, rows and ends of a `StepResult`.
using Columns = std::tuple<Ints, Ints, Ints, Ints>;

Columns columns_of(trtspec::StepResult result) {
  Ints ends;
  for (const trtspec::FinishReason end : result.ends) ends.push_back(int64_t(end));
  return {std::move(result.start), std::move(result.tokens), std::move(result.rows),
          std::move(ends)};
}

// The items of a step's plan (see plan_table), and what is asked of their rows.
struct Asked {
  Asked(const at::Tensor& plan, int64_t drafts)
      : items(items_of(plan)), inputs(checked(items, drafts_at(drafts))) {}

  static trtspec::VerifyInputs checked(const std::vector<trtspec::ScheduledRows>& items,
                                       const trtspec::DraftBatch& drafts) {
    TORCH_CHECK(drafts.size() == items.size(), "sampling: one tree is needed for each of ",
                items.size(), " requests");
    return {items, drafts};
  }

  std::vector<trtspec::ScheduledRows> items;
  trtspec::VerifyInputs inputs;
};

// The seven columns of the root rows of requests, by their sequences.
std::vector<at::Tensor> root_columns(const Ints& sequences) {
  trtspec::SamplingTable table;
  for (const int64_t sequence : sequences) table.add(request_at(sequence));
  return table.columns();
}

// As the inputs of ops and engines: the seven columns of the rows, then tokens, parents and first
// rows as `accept` takes them.
std::vector<at::Tensor> tensors(const at::Tensor& plan, int64_t drafts) {
  const Asked asked(plan, drafts);
  const trtspec::VerifyInputs& inputs = asked.inputs;
  std::vector<at::Tensor> made = inputs.table.columns();
  made.insert(made.end(), {trtspec::host_copy(inputs.tokens), trtspec::host_copy(inputs.parents),
                           trtspec::host_copy(inputs.starts)});
  return made;
}

// What becomes of them by logits on the host. forced: see `accept`; empty: nothing is. The rest:
// see `mask_logits`.
Columns verify(const at::Tensor& plan, int64_t drafts, const at::Tensor& logits, const Ints& forced,
               const Optional& allowed, const Optional& bias_rows, const Optional& bias_ids,
               const Optional& bias_values) {
  Asked asked(plan, drafts);
  trtspec::VerifyInputs& inputs = asked.inputs;
  TORCH_CHECK(forced.empty() || forced.size() == asked.items.size(), "sampling: ", forced.size(),
              " forced counts for ", asked.items.size(), " requests");
  inputs.forced.assign(forced.begin(), forced.end());
  const trtspec::LogitsMaskCall call(logits, inputs.starts.back(), allowed, bias_rows, bias_ids,
                                     bias_values);
  call.check_rows(inputs.starts.back());
  inputs.mask = call.mask();
  return columns_of(trtspec::verify(inputs, logits, sample_here));
}

// The same by what an engine or ops found, on the host: `sample` of every row [R] i64, and what
// `accept` says, [B, P] i32 and [B] i32.
Columns decode(const at::Tensor& plan, int64_t drafts, const at::Tensor& sampled,
               const at::Tensor& accepted, const at::Tensor& emitted) {
  const Asked asked(plan, drafts);
  const trtspec::VerifyInputs& inputs = asked.inputs;
  const auto count = int64_t(asked.items.size());
  TORCH_CHECK(sampled.numel() == inputs.starts.back() && accepted.dim() == 2 &&
                  accepted.size(0) == count && emitted.numel() == count,
              "sampling: results of ", inputs.starts.back(), " rows of ", count,
              " requests are needed, not ", sampled.sizes(), ", ", accepted.sizes(), " and ",
              emitted.sizes());
  return columns_of(trtspec::decode(inputs, sampled.contiguous().const_data_ptr<int64_t>(),
                                    accepted.contiguous().const_data_ptr<int32_t>(),
                                    accepted.size(1),
                                    emitted.contiguous().const_data_ptr<int32_t>()));
}

struct RowSampler : torch::CustomClassHolder {};

}  // namespace

void register_row_sampler(torch::Library& library) {
  library.class_<RowSampler>("RowSampler")
      .def_static("root_columns", &root_columns)
      .def_static("tensors", &tensors)
      .def_static("verify", &verify)
      .def_static("decode", &decode);
}
