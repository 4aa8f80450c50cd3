// RowSampler: what a step asks of the rows of its requests, as torch sees it. Logits that do not fit
// come to Python as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/sampler.hpp>

#include <optional>
#include <tuple>
#include <unordered_map>
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

// What stays as it is while a request runs.
struct Kept {
  trtspec::SamplingOptions options;
  Ints end_tokens;
};

// The columns start, tokens, rows and ends of a `StepResult`.
using Columns = std::tuple<Ints, Ints, Ints, Ints>;

Columns columns_of(trtspec::StepResult result) {
  Ints ends;
  for (const trtspec::FinishReason end : result.ends) ends.push_back(int64_t(end));
  return {std::move(result.start), std::move(result.tokens), std::move(result.rows),
          std::move(ends)};
}

struct RowSamplerHolder : torch::CustomClassHolder {
  void add(int64_t id, double temperature, int64_t top_k, double top_p, double min_p, int64_t seed,
           int64_t sample_index, const Ints& end_tokens) {
    requests[id] = {{.temperature = temperature,
                     .top_k = top_k,
                     .top_p = top_p,
                     .min_p = min_p,
                     .seed = seed,
                     .sample_index = sample_index,
                     .stop_token_ids = {}},
                    end_tokens};
  }

  void remove(int64_t id) { requests.erase(id); }

  // Of requests by their sequences, and the address of the drafts that they verify, 0 without.
  trtspec::VerifyInputs inputs_of(const Ints& sequences, int64_t drafts) const {
    TORCH_CHECK(drafts == 0 || drafts_at(drafts).size() == sequences.size(),
                "sampling: one tree is needed for each of ", sequences.size(), " requests");
    std::vector<trtspec::SampledRequest> sampled;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const trtspec::Sequence& sequence = sequence_at(sequences[i]);
      const auto found = requests.find(sequence.id);
      TORCH_CHECK(found != requests.end(), "sampling: request ", sequence.id, " has not begun");
      const Kept& kept = found->second;
      sampled.push_back({&kept.options, sequence.num_output_tokens(),
                       drafts == 0 ? trtspec::TreeView() : drafts_at(drafts)[i], kept.end_tokens,
                       sequence.remaining_tokens()});
    }
    return trtspec::VerifyInputs(sampled);
  }

  // As the inputs of ops and engines: the seven columns of the rows, then tokens, parents and first
  // rows as `accept` takes them.
  std::vector<at::Tensor> tensors(const Ints& sequences, int64_t drafts) {
    const trtspec::VerifyInputs inputs = inputs_of(sequences, drafts);
    std::vector<at::Tensor> made = inputs.table.columns();
    made.insert(made.end(), {trtspec::host_copy(inputs.tokens), trtspec::host_copy(inputs.parents),
                             trtspec::host_copy(inputs.starts)});
    return made;
  }

  // What becomes of them by logits on the host. forced: see `accept`; empty: nothing is. The rest:
  // see `mask_logits`.
  Columns verify(const Ints& sequences, int64_t drafts, const at::Tensor& logits,
                 const Ints& forced, const Optional& allowed, const Optional& bias_rows,
                 const Optional& bias_ids, const Optional& bias_values) {
    trtspec::VerifyInputs inputs = inputs_of(sequences, drafts);
    TORCH_CHECK(forced.empty() || forced.size() == sequences.size(), "sampling: ", forced.size(),
                " forced counts for ", sequences.size(), " requests");
    inputs.forced.assign(forced.begin(), forced.end());
    const trtspec::LogitsMaskCall call(logits, inputs.starts.back(), allowed, bias_rows, bias_ids,
                                       bias_values);
    call.check_rows(inputs.starts.back());
    inputs.mask = call.mask();
    return columns_of(trtspec::verify(inputs, logits, sample_here));
  }

  // The same by what an engine or ops found, on the host: `sample` of every row [R] i64, and what
  // `accept` says, [J, P] i32 and [J] i32.
  Columns decode(const Ints& sequences, int64_t drafts, const at::Tensor& sampled,
                 const at::Tensor& accepted, const at::Tensor& emitted) {
    const trtspec::VerifyInputs inputs = inputs_of(sequences, drafts);
    const auto count = int64_t(sequences.size());
    TORCH_CHECK(sampled.numel() == inputs.starts.back() && accepted.dim() == 2 &&
                    accepted.size(0) == count && emitted.numel() == count,
                "sampling: results of ", inputs.starts.back(), " rows of ", count,
                " requests are needed, not ", sampled.sizes(), ", ", accepted.sizes(), " and ",
                emitted.sizes());
    return columns_of(trtspec::decode(inputs, sampled.contiguous().const_data_ptr<int64_t>(),
                                accepted.contiguous().const_data_ptr<int32_t>(), accepted.size(1),
                                emitted.contiguous().const_data_ptr<int32_t>()));
  }

  std::unordered_map<int64_t, Kept> requests;
};

}  // namespace

void register_row_sampler(torch::Library& library) {
  library.class_<RowSamplerHolder>("RowSampler")
      .def(torch::init<>())
      .def("add", &RowSamplerHolder::add)
      .def("remove", &RowSamplerHolder::remove)
      .def("tensors", &RowSamplerHolder::tensors)
      .def("verify", &RowSamplerHolder::verify)
      .def("decode", &RowSamplerHolder::decode);
}
