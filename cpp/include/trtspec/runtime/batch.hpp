// ScheduledBatch: what one step feeds to the target, as the scheduler decided it.
#pragma once

#include <cstdint>
#include <trtspec/runtime/request.hpp>
#include <vector>

namespace trtspec {

// Rows of one request in a step: tokens[start : start + num_rows], then its draft nodes.
struct ScheduledRequest {
  Request* request;
  std::int64_t start;     // the target's committed length
  std::int64_t num_rows;  // 1 (the root) if is_generation
  bool is_generation;
  // Draft nodes for which rows and blocks are reserved; 0 in prefill. Where it is 0, no draft-cache
  // room is reserved beyond what the request held, so no rollout may run for it.
  std::int64_t max_nodes;
  // Whether the rows reach the newest token, so that the step emits a token; always so if
  // is_generation.
  bool samples;
};

// The requests of a step, in order of arrival, and those that lost their blocks for it: these are
// back in the queue with nothing in either cache, and drafters forget them.
struct ScheduledBatch {
  std::vector<ScheduledRequest> items;
  std::vector<Request*> preempted;
};

}  // namespace trtspec
