// Scheduler: which rows of which requests the next step feeds, within rows and blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <trtspec/runtime/batch.hpp>
#include <trtspec/runtime/drafter.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/runtime/resource_manager.hpp>
#include <utility>
#include <vector>

namespace trtspec {

struct SchedulerLimits {
  std::int64_t max_batch_size;
  std::int64_t max_num_tokens;  // rows of a step over all requests, draft nodes included
  std::int64_t max_seq_len;     // prompt and output of one request
};

// Continuous batching, first come first served, with chunked prefill and preemption.
//
// A step is decided in three passes.
//
// 1. Every running request reserves one row: the root, or the next row of its prompt. If that
//    fails, the latest arrival among the running ones is preempted (its blocks freed, its output
//    kept, itself put at the front of the queue, to be recomputed), until it succeeds or the
//    request is itself the latest: then it keeps its blocks and waits for a later step.
// 2. What is left of the row budget and of the blocks goes, in order of arrival, to draft nodes and
//    to longer prefill chunks. This pass shrinks what does not fit and never preempts: a request
//    without drafts loses a few tokens of this step, while a victim loses its whole context. (Hence
//    the mandatory rows of all come before the drafts of the first.)
// 3. Waiting requests are admitted if their whole prompt fits beside what pass 1 will ask for in
//    the next steps; nobody is admitted in a step in which somebody lacked blocks.
//
// So every step feeds the earliest unfinished request at least one row: it is nobody's victim, and
// at worst all others are preempted for it.
class Scheduler {
 public:
  // Throws Error for limits that contradict each other or the drafter's needs.
  Scheduler(ResourceManager& resources, const SchedulerLimits& limits, const DrafterNeeds& needs);

  std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t num_waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  bool has_work() const { return !requests_.empty(); }

  // Throws Error if the request could not run even alone: longer than max_seq_len,
  // or with its drafts larger than one of the caches.
  void check_fits(const Request& request) const;
  // Queues a request behind all others; throws as check_fits does, and for an id that is in use.
  void add(Request request);
  // Drops an unfinished request and frees its blocks; false if the id is unknown or finished.
  bool abort(std::int64_t request_id);
  // Forgets a request whose text has ended, and frees its blocks.
  void finish(std::int64_t request_id);
  // Reserves and returns the rows of the next step; empty only if there is no request. All
  // committed lengths must be those after the step before.
  ScheduledBatch schedule();

 private:
  // Pass 1: the requests that have their row, with their committed lengths.
  std::vector<std::pair<Request*, std::int64_t>> reserve_one_row_each(
      std::vector<Request*>& preempted);
  // Pass 2: draft nodes, or a longer chunk, for a request that has one row; `spare` more rows are
  // left.
  ScheduledRequest extend(Request& request, std::int64_t start, std::int64_t spare);
  // Pass 3: starts waiting requests, appending to `items`.
  void admit(std::vector<ScheduledRequest>& items, std::int64_t spare);
  Request* preempt_latest();

  ResourceManager& resources_;
  SchedulerLimits limits_;
  DrafterNeeds needs_;
  std::vector<Request*> running_;  // in order of arrival
  std::deque<Request*> waiting_;   // in order of arrival, all after the running ones
  std::map<std::int64_t, std::unique_ptr<Request>> requests_;
};

}  // namespace trtspec
