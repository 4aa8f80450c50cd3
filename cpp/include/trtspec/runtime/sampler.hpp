// From the logits of a step's rows to the tokens that each request emits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <trtspec/draft_batch.hpp>
#include <trtspec/logits_mask.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/runtime/step_result.hpp>
#include <trtspec/sampling.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

// The parameters of rows that are to be sampled, a value a row. A row of output index i draws the
// noise of the request's output token i.
class SamplingTable {
 public:
  // Appends the request's root row and one row per node of its draft.
  void add(const Request& request, TreeView draft = {});

  std::int64_t size() const { return static_cast<std::int64_t>(seed_.size()); }
  // Valid until the next change.
  SamplingRows view() const;
  // A copy, as the inputs of an engine.
  SamplingColumns columns() const;

 private:
  std::vector<float> temperature_;
  std::vector<std::int32_t> top_k_;
  std::vector<float> top_p_;
  std::vector<float> min_p_;
  std::vector<std::int64_t> seed_;
  std::vector<std::int64_t> sample_index_;
  std::vector<std::int64_t> output_index_;
};

// The sampling values of requests whose tokens nobody asks for.
SamplingColumns greedy_sampling(std::int64_t count);

// What is asked of the rows of a step's items, which lie one behind the other: of each that samples
// its root, then the nodes of its draft; of the others none.
struct VerifyInputs {
  SamplingTable table;
  std::vector<std::int64_t> tokens;   // of each row; 0 for roots
  std::vector<std::int32_t> parents;  // the parent's row in its request; -1 for roots
  std::vector<std::int32_t> starts;   // the first row of each item, and the number of rows
  std::span<const ScheduledRows> items;
  std::vector<std::int32_t> forced;  // of each item, see `accept`; empty: of none
  LogitsMask mask;                   // of the rows; what it points to must live as long

  // The items are the caller's, and live as long as this.
  VerifyInputs(std::span<const ScheduledRows> items, const DraftBatch& drafts);

  std::int64_t num_rows(std::size_t item) const { return starts[item + 1] - starts[item]; }
};

// Writes what every row of logits emits; see `sample` of sampling.hpp.
using SampleRows =
    std::function<void(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids)>;

// Throws std::runtime_error unless the logits are f32 [rows, V], of some V, on the host as far as
// torch knows.
void check_logits(const at::Tensor& logits, std::int64_t rows);

// What walks say of every item: sampled [R], of each row; accepted [B, width], the rows of its path;
// emitted [B], how long it is. See `accept` of acceptance.hpp.
StepResult decode(const VerifyInputs& inputs, const std::int64_t* sampled,
                  const std::int32_t* accepted, std::int64_t width, const std::int32_t* emitted);

// Samples every row and walks every item's draft. logits f32 [R, V] holds the rows that are asked
// about; a mask changes them in place. Throws std::runtime_error for logits of another shape or
// dtype, or that are not on the host; where no item samples, none are looked at.
StepResult verify(const VerifyInputs& inputs, const at::Tensor& logits, const SampleRows& sample);

}  // namespace trtspec
