// What happens to logits before rows are sampled, as far as it is known before they are (the law is
// described in trtspec/ops/logits_mask.py).
#pragma once

#include <cstdint>

namespace trtspec {

// Of R rows. Null: nothing of that kind happens.
struct LogitsMask {
  const std::int32_t* allowed = nullptr;  // [R, words]: bit v % 32 of word v / 32: token v may come
  std::int64_t words = 0;                 // ids that have no bit must not come
  // [num_biases], ordered by row, then by id; those of ids beyond the vocabulary are ignored.
  const std::int64_t* bias_rows = nullptr;
  const std::int64_t* bias_ids = nullptr;
  const float* bias_values = nullptr;  // -inf: must not come, whatever the logit
  std::int64_t num_biases = 0;
};

// Changes logits [rows, vocab], contiguous, in place: biases are added, equal ids in their order;
// then what must not come is -inf. bias_rows are 0 to rows - 1.
void mask_logits(float* logits, std::int64_t rows, std::int64_t vocab, const LogitsMask& mask);

}  // namespace trtspec
