// From the logits of a step's rows to the tokens that each request emits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/sampling.hpp>
#include <vector>

namespace trtspec {

// The parameters of rows that are to be sampled, a value a row. A row of output index i draws the
// noise of the request's output token i.
class SamplingTable {
 public:
  // Appends the request's root row and, if `with_draft`, one row per node of its draft.
  void add(const Request& request, bool with_draft);

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

// What the target says about one request's rows: the accepted ones, root first, and what each of
// them emits; the last token is the bonus. failed: the model gave no usable number for the root's
// row. A path ends before a later one of that kind, which is the root's in the next step.
struct Verdict {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> tokens;
  bool failed = false;
};

// Samples every row and walks every request's draft. logits f32 [R, V] holds, request by request,
// the row of its newest token and one row per node of its draft, on `device`. Throws
// std::runtime_error for logits of another shape or dtype.
std::vector<Verdict> verify(std::span<const Request* const> requests, const at::Tensor& logits,
                            Device& device);

}  // namespace trtspec
