// Sampling with keyed Gumbel noise (the law is described in trtspec/ops/sampling.py).
//
// Every figure that decides a token is an exact integer or a float64 computed with plain IEEE
// arithmetic in a fixed order, so the results do not depend on the instruction set, the number of
// threads, or the other rows of the call.
#pragma once

#include <cstdint>

namespace trtspec {

// The parameters of `rows` rows; each array holds one value a row.
struct SamplingRows {
  const float* temperature;   // 0 = greedy
  const std::int32_t* top_k;  // 0 = off
  const float* top_p;         // >= 1 = off
  const float* min_p;         // 0 = off
  const std::int64_t* seed;
  const std::int64_t* sample_index;
  const std::int64_t* output_index;
};

// ids[r] = the token that row r emits, or -1 where the row has none: its logits hold NaN or +inf,
// or are all -inf, or its temperature is negative or NaN. logits is [rows, vocab], contiguous.
void sample(const float* logits, std::int64_t rows, std::int64_t vocab, const SamplingRows& params,
            std::int64_t* ids);

// The k best tokens by perturbed score and their log-softmax over the survivors, [rows, k] each.
// token_map ([vocab], may be null) gives the target id of a column: noise is keyed by it and it is
// what `ids` holds. Entries beyond the survivors (all of them on a row without any) are 0 and -inf.
void draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                      const SamplingRows& params, const std::int64_t* token_map, std::int64_t k,
                      std::int64_t* ids, float* logprobs);

// The float64 Gumbel noise of every id of one stream: the slow, plain path, for tests.
void gumbel_noise(std::int64_t seed, std::int64_t sample_index, std::int64_t output_index,
                  const std::int64_t* token_ids, std::int64_t count, double* noise);

}  // namespace trtspec
