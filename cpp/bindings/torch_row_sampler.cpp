// RowSampler: what a step asks of the rows of its requests, as torch sees it. Logits that do not fit
// come to Python as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/sampler.hpp>

#include <tuple>
#include <unordered_map>
#include <vector>

#include "tree_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

void sample_here(const at::Tensor& logits, const trtspec::SamplingRows& params, int64_t* ids) {
  trtspec::sample(logits.const_data_ptr<float>(), logits.size(0), logits.size(1), params, ids);
}

// The sampling options of requests, which stay as they are while a request runs.
struct RowSamplerHolder : torch::CustomClassHolder {
  void add(int64_t id, double temperature, int64_t top_k, double top_p, double min_p, int64_t seed,
           int64_t sample_index) {
    options[id] = {.temperature = temperature,
                   .top_k = top_k,
                   .top_p = top_p,
                   .min_p = min_p,
                   .seed = seed,
                   .sample_index = sample_index,
                   .stop_token_ids = {}};
  }

  void remove(int64_t id) { options.erase(id); }

  // Of requests with the addresses of the trees that they verify, and which of their output tokens
  // each root emits.
  trtspec::Questions questions(const Ints& ids, const Ints& trees,
                               const Ints& outputs) const {
    TORCH_CHECK(trees.size() == ids.size() && outputs.size() == ids.size(),
                "sampling: one tree and one output is needed for each of ", ids.size(), " requests");
    std::vector<trtspec::Asked> asked;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto found = options.find(ids[i]);
      TORCH_CHECK(found != options.end(), "sampling: request ", ids[i], " has not begun");
      asked.push_back({&found->second, outputs[i], &tree_at(trees[i])});
    }
    return trtspec::Questions(asked);
  }

  // As the inputs of ops and engines: the seven columns of the rows, then tokens, parents and first
  // rows as `accept` takes them.
  std::vector<at::Tensor> tensors(const Ints& ids, const Ints& trees,
                                  const Ints& outputs) {
    const trtspec::Questions asked = questions(ids, trees, outputs);
    std::vector<at::Tensor> made = asked.table.columns();
    made.insert(made.end(), {trtspec::host_copy(asked.tokens), trtspec::host_copy(asked.parents),
                             trtspec::host_copy(asked.starts)});
    return made;
  }

  // The verdicts over logits on the host: how many tokens each request emits, and of all of them
  // the accepted rows and the tokens, one request behind the other. A single token of -1: the root's
  // row has no usable number.
  std::tuple<Ints, Ints, Ints> judge(const Ints& ids, const Ints& trees,
                                     const Ints& outputs, const at::Tensor& logits) {
    std::tuple<Ints, Ints, Ints> decided;
    auto& [counts, rows, tokens] = decided;
    for (const trtspec::Verdict& verdict :
         trtspec::verify(questions(ids, trees, outputs), logits, sample_here)) {
      counts.push_back(int64_t(verdict.tokens.size()));
      rows.insert(rows.end(), verdict.rows.begin(), verdict.rows.end());
      tokens.insert(tokens.end(), verdict.tokens.begin(), verdict.tokens.end());
    }
    return decided;
  }

  std::unordered_map<int64_t, trtspec::SamplingOptions> options;
};

}  // namespace

void register_row_sampler(torch::Library& library) {
  library.class_<RowSamplerHolder>("RowSampler")
      .def(torch::init<>())
      .def("add", &RowSamplerHolder::add)
      .def("remove", &RowSamplerHolder::remove)
      .def("tensors", &RowSamplerHolder::tensors)
      .def("judge", &RowSamplerHolder::judge);
}
