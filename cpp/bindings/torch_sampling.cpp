// trtspec::sample, trtspec::draft_candidates and trtspec::_gumbel_noise (contract:
// trtspec/ops/sampling.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <trtspec/sampling.hpp>

#include <tuple>

#include "checks.hpp"

namespace {

using at::Tensor;

// The parameters of the rows, contiguous; a kernel's view of them lives as long as this does.
struct Rows {
  Tensor logits, temperature, top_k, top_p, min_p, seed, sample_index, output_index;

  trtspec::SamplingRows view() const {
    return {temperature.const_data_ptr<float>(),    top_k.const_data_ptr<int32_t>(),
            top_p.const_data_ptr<float>(),          min_p.const_data_ptr<float>(),
            seed.const_data_ptr<int64_t>(),         sample_index.const_data_ptr<int64_t>(),
            output_index.const_data_ptr<int64_t>()};
  }
};

Rows check_rows(const char* op, const Tensor& logits, const Tensor& temperature,
                const Tensor& top_k, const Tensor& top_p, const Tensor& min_p, const Tensor& seed,
                const Tensor& sample_index, const Tensor& output_index) {
  trtspec::check_dim(op, "logits", logits, 2);
  trtspec::check_dtype(op, "logits", logits, at::kFloat);
  TORCH_CHECK(logits.size(1) > 0 && logits.size(1) < (int64_t{1} << 22), op,
              ": the vocabulary must have 1 to 2^22 - 1 tokens, got ", logits.size(1));
  const auto row = [&](const char* name, const Tensor& x, at::ScalarType dtype) {
    trtspec::check_shape(op, name, x, {logits.size(0)});
    trtspec::check_dtype(op, name, x, dtype);
    return x.contiguous();
  };
  return {logits.contiguous(),
          row("temperature", temperature, at::kFloat),
          row("top_k", top_k, at::kInt),
          row("top_p", top_p, at::kFloat),
          row("min_p", min_p, at::kFloat),
          row("seed", seed, at::kLong),
          row("sample_index", sample_index, at::kLong),
          row("output_index", output_index, at::kLong)};
}

Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seed,
              const Tensor& sample_index, const Tensor& output_index) {
  const Rows rows = check_rows("sample", logits, temperature, top_k, top_p, min_p, seed,
                               sample_index, output_index);
  Tensor ids = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  trtspec::sample(rows.logits.const_data_ptr<float>(), logits.size(0), logits.size(1), rows.view(),
                  ids.mutable_data_ptr<int64_t>());
  return ids;
}

std::tuple<Tensor, Tensor> draft_candidates(
    const Tensor& logits, const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
    const Tensor& min_p, const Tensor& seed, const Tensor& sample_index, const Tensor& output_index,
    const std::optional<Tensor>& token_map, int64_t k) {
  const Rows rows = check_rows("draft_candidates", logits, temperature, top_k, top_p, min_p, seed,
                               sample_index, output_index);
  TORCH_CHECK(k >= 1, "draft_candidates: k must be at least 1, got ", k);
  Tensor map;
  if (token_map) {
    trtspec::check_shape("draft_candidates", "token_map", *token_map, {logits.size(1)});
    trtspec::check_dtype("draft_candidates", "token_map", *token_map, at::kLong);
    map = token_map->contiguous();
  }
  Tensor ids = at::empty({logits.size(0), k}, logits.options().dtype(at::kLong));
  Tensor logprobs = at::empty({logits.size(0), k}, logits.options());
  trtspec::draft_candidates(rows.logits.const_data_ptr<float>(), logits.size(0), logits.size(1),
                            rows.view(), token_map ? map.const_data_ptr<int64_t>() : nullptr, k,
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
