// ScheduledBatch: what one step feeds to the target, as the scheduler decided it, by requests.
#pragma once

#include <cstdint>
#include <trtspec/runtime/request.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

// See ScheduledRows.
struct ScheduledRequest {
  Request* request;
  std::int64_t start;
  std::int64_t num_rows;
  bool is_generation;
  std::int64_t max_nodes;
  bool samples;
};

// See StepPlan. Drafters forget those that were preempted.
struct ScheduledBatch {
  std::vector<ScheduledRequest> items;
  std::vector<Request*> preempted;
  std::size_t num_begun = 0;  // the last items: they begin, for the first time or again

  // Of a scheduler that was given requests, and nothing else.
  static ScheduledBatch of(const StepPlan& plan) {
    ScheduledBatch batch;
    for (const ScheduledRows& rows : plan.items) {
      batch.items.push_back({static_cast<Request*>(rows.sequence), rows.start, rows.num_rows,
                             rows.is_generation, rows.max_nodes, rows.samples});
    }
    batch.num_begun = std::size_t(plan.num_begun);
    for (Sequence* sequence : plan.preempted) {
      batch.preempted.push_back(static_cast<Request*>(sequence));
    }
    return batch;
  }
};

}  // namespace trtspec
