// Every figure about speculation, computed in one place from one histogram, and engine timings.
//
// Definitions (the same in Python, server and C++): a *step* is one target verification of one
// request. It emits its accepted drafts and one token more, the target's own, unless the text ended
// before; so accepted drafts = emitted tokens - 1, counted on emitted tokens only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <trtspec/json.hpp>
#include <trtspec/tree_view.hpp>
#include <vector>

namespace trtspec {

// Counts over verify steps, of one request or of many merged. histogram()[a] is the number of steps
// that accepted a draft tokens; the token sampled by a prefill is not a step.
class SpeculativeMetrics {
 public:
  // One step: the rows that emitted tokens (1 or more), and the tree that was verified. Throws
  // std::logic_error for numbers that cannot be.
  void record(std::span<const std::int64_t> rows, const TreeView& drafted);
  // Adds the counts of `other`.
  void merge(const SpeculativeMetrics& other);

  const std::vector<std::int64_t>& histogram() const { return histogram_; }
  // [d]: steps whose deepest draft node had depth d.
  const std::vector<std::int64_t>& drafted_depths() const { return drafted_depths_; }
  std::int64_t num_draft_tokens() const { return num_draft_tokens_; }
  std::int64_t num_steps() const;
  // Steps that had any draft token to verify.
  std::int64_t num_drafts() const;
  std::int64_t num_accepted_tokens() const;
  std::int64_t num_emitted_tokens() const { return num_accepted_tokens() + num_steps(); }
  // [i]: steps that accepted a draft at depth i + 1, up to the deepest ever drafted.
  std::vector<std::int64_t> num_accepted_tokens_per_pos() const;
  // [i]: steps that had a draft at depth i + 1. Steps near the end of a text draft less.
  std::vector<std::int64_t> num_drafts_per_pos() const;
  // Unconditional: accepted at that depth per step that drafted so deep.
  std::vector<double> acceptance_rate_per_pos() const;
  // [s]: drafted tokens that source s of a union proposed, and those of them that were accepted; of
  // any other drafter all are of source 0.
  std::vector<std::int64_t> num_draft_tokens_per_source() const;
  std::vector<std::int64_t> num_accepted_tokens_per_source() const;
  // Emitted tokens per step (accepted + 1); 0 before the first step.
  double acceptance_length() const;
  // Accepted per drafted token; 0 if nothing was drafted.
  double acceptance_rate() const;

  // Appends all of it to the object that is open in `out`, under the names of Python's
  // LLM.get_metrics().
  void write(JsonWriter& out) const;

 private:
  std::vector<std::int64_t> histogram_;
  std::vector<std::int64_t> drafted_depths_;
  std::int64_t num_draft_tokens_ = 0;
  std::vector<TreeView::OfSource> by_source_;
};

// One executor step, whole, in seconds, and the part of it that was spent in the engines.
struct StepClock {
  double seconds = 0.0;
  double target_seconds = 0.0;
  double draft_seconds = 0.0;
  std::int64_t target_calls = 0;
  std::int64_t draft_calls = 0;

  // What the step took outside the engines.
  double host_seconds() const;
};

// Figures of a whole executor: verify steps per request and in all, and where time went.
class ExecutorMetrics {
 public:
  void record_step(const StepClock& step);
  // A request of `queried` prompt tokens begins on `found` of them, out of the caches.
  void record_prefix(std::int64_t queried, std::int64_t found);
  // One verify step of one request; see SpeculativeMetrics::record.
  void record_verify(std::int64_t request_id, std::span<const std::int64_t> rows,
                     const TreeView& drafted);

  const SpeculativeMetrics& total() const { return total_; }
  // The figures of one request; empty ones for a request without verify steps.
  const SpeculativeMetrics& of(std::int64_t request_id) const;
  // Forgets a request; its figures stay in the total. Unknown ids are ignored.
  void release(std::int64_t request_id) { requests_.erase(request_id); }

  std::int64_t num_engine_steps() const { return num_engine_steps_; }
  std::int64_t num_prefix_cache_hits() const { return num_prefix_cache_hits_; }
  // The sum over all steps, and the last of them.
  const StepClock& clock() const { return clock_; }
  const StepClock& last_step() const { return last_step_; }

  // Appends everything since the start to the object that is open in `out`, under the names of
  // Python's ExecutorMetrics.to_dict(), but for those of verify steps. Times are milliseconds in
  // all, step_ms the mean of an executor step, host_ms what steps took outside the engines,
  // host_share its part.
  void write(JsonWriter& out) const;

 private:
  SpeculativeMetrics total_;
  std::map<std::int64_t, SpeculativeMetrics> requests_;
  std::int64_t num_engine_steps_ = 0;
  std::int64_t num_prefix_cache_queries_ = 0;
  std::int64_t num_prefix_cache_hits_ = 0;
  StepClock clock_;
  StepClock last_step_;
};

}  // namespace trtspec
