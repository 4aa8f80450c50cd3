#include "sampling_row.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace trtspec {

RowKind prepare_row(const float* logits, std::int64_t vocab, const SamplingRows& params,
                    std::int64_t r, int threads, SamplingScratch& scratch, SamplingRow& row) {
  const float temperature = params.temperature[r];
  if (!(temperature >= 0.0f) || std::isinf(temperature)) return RowKind::invalid;

  const std::int64_t blocks = block_count(vocab);
  scratch.maxima.resize(static_cast<std::size_t>(blocks));
  float* maxima = scratch.maxima.data();
  // One thread: the scan of a row takes no longer than waking another one would.
  const bool numbers = TRTSPEC_DISPATCH(block_maxima, logits, vocab, 0, blocks, maxima);
  if (!numbers || blocks == 0) return RowKind::invalid;
  const float highest = *std::max_element(maxima, maxima + blocks);
  if (std::isinf(highest)) return RowKind::invalid;
  scratch.highest = highest;

  const bool greedy = temperature == 0.0f;
  const double scale = greedy ? 1.0 : static_cast<double>(temperature);
  row = {.logits = logits,
         .vocab = vocab,
         .temperature = scale,
         .max_scaled = static_cast<double>(highest) / scale,
         .min_p = greedy ? 0.0 : static_cast<double>(params.min_p[r]),
         .cut = {-FLT_MAX, vocab - 1},
         .noise = noise_stream(params.seed[r], params.sample_index[r], params.output_index[r]),
         .token_map = nullptr};
  if (greedy) return RowKind::greedy;
  scratch.weights.resize(static_cast<std::size_t>(blocks));
  TRTSPEC_DISPATCH(block_weights, row, maxima, blocks, scratch.weights.data());
  apply_filters(row, params.top_k[r], params.top_p[r], threads, scratch);
  return RowKind::random;
}

}  // namespace trtspec
