// trtspec::sample, trtspec::draft_candidates and trtspec::_gumbel_noise (contract:
// trtspec/ops/sampling.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/sampling.hpp>

#include <tuple>

#include "sampling_call.hpp"
#include "shim.hpp"

namespace {

using at::Tensor;

Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seed,
              const Tensor& sample_index, const Tensor& output_index) {
  const trtspec::SamplingCall call("sample", logits, temperature, top_k, top_p, min_p, seed,
                                   sample_index, output_index);
  Tensor ids = at::empty({call.rows()}, logits.options().dtype(at::kLong));
  trtspec::sample(call.logits(), call.rows(), call.vocab(), call.params(),
                  ids.mutable_data_ptr<int64_t>());
  return ids;
}

std::tuple<Tensor, Tensor> draft_candidates(const Tensor& logits, const Tensor& temperature,
                                            const Tensor& top_k, const Tensor& top_p,
                                            const Tensor& min_p, const Tensor& seed,
                                            const Tensor& sample_index, const Tensor& output_index,
                                            const std::optional<Tensor>& token_map, int64_t k) {
  const trtspec::SamplingCall call("draft_candidates", logits, temperature, top_k, top_p, min_p,
                                   seed, sample_index, output_index);
  TORCH_CHECK(k >= 1, "draft_candidates: k must be at least 1, got ", k);
  const Tensor map = trtspec::checked_token_map(token_map, logits);
  Tensor ids = at::empty({call.rows(), k}, logits.options().dtype(at::kLong));
  Tensor logprobs = at::empty({call.rows(), k}, logits.options());
  trtspec::draft_candidates(call.logits(), call.rows(), call.vocab(), call.params(),
                            map.defined() ? map.const_data_ptr<int64_t>() : nullptr, k,
                            ids.mutable_data_ptr<int64_t>(), logprobs.mutable_data_ptr<float>());
  return {ids, logprobs};
}

// The native noise of some token ids, float64, for tests.
Tensor gumbel_noise(const Tensor& token_ids, int64_t seed, int64_t sample_index,
                    int64_t output_index) {
  TORCH_CHECK(token_ids.scalar_type() == at::kLong && token_ids.is_contiguous(),
              "token_ids must be contiguous int64");
  Tensor noise = at::empty(token_ids.sizes(), token_ids.options().dtype(at::kDouble));
  trtspec::gumbel_noise(seed, sample_index, output_index, token_ids.const_data_ptr<int64_t>(),
                        token_ids.numel(), noise.mutable_data_ptr<double>());
  return noise;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_draft_candidates(
    AtenTensorHandle logits, AtenTensorHandle temperature, AtenTensorHandle top_k,
    AtenTensorHandle top_p, AtenTensorHandle min_p, AtenTensorHandle seed,
    AtenTensorHandle sample_index, AtenTensorHandle output_index, AtenTensorHandle* token_map,
    int64_t k, AtenTensorHandle* ids, AtenTensorHandle* logprobs) {
  using trtspec::tensor;
  return trtspec::run_shims(
      [&] {
        return draft_candidates(tensor(logits), tensor(temperature), tensor(top_k), tensor(top_p),
                                tensor(min_p), tensor(seed), tensor(sample_index),
                                tensor(output_index), trtspec::optional_tensor(token_map), k);
      },
      ids, logprobs);
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
      "Tensor seed, Tensor sample_index, Tensor output_index) -> Tensor");
  m.def(
      "draft_candidates(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, "
      "Tensor min_p, Tensor seed, Tensor sample_index, Tensor output_index, Tensor? token_map, "
      "int k) -> (Tensor, Tensor)");
  m.def("_gumbel_noise(Tensor token_ids, int seed, int sample_index, int output_index) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("sample", &sample);
  m.impl("draft_candidates", &draft_candidates);
  m.impl("_gumbel_noise", &gumbel_noise);
}
