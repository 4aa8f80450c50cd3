// Executor: the loop that drives the engines, one step at a time. It decides as the Python
// PyExecutor does, step by step; a recorded trace replayed through both holds them together.
//
//   ResourceManager resources(std::make_shared<KVCacheManager>(num_blocks, size), {{draft_cache}});
//   auto drafter = std::make_unique<HiddenStateDrafter>(draft_engine, resources, shape);
//   Executor executor(target_engine, resources, std::move(drafter), limits);
//   executor.add(Request::create(0, prompt, options, limits.max_seq_len, eos_token_ids));
//   while (executor.has_work())
//     for (const StepOutput& output : executor.step()) ...
//
// Not part of this runtime: stop strings, grammars, and the controller that weighs what drafts cost
// (hybrid, auto, adaptive). A text ends at EOS, at a stop token, or at its longest length.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <trtspec/resource_manager.hpp>
#include <trtspec/runtime/drafter.hpp>
#include <trtspec/runtime/metrics.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/runtime/verification.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

// What a step did for one request.
struct StepOutput {
  std::int64_t request_id;
  std::vector<std::int64_t> tokens;  // emitted by the step; none in the middle of a prefill
  FinishReason finish_reason = FinishReason::none;  // `none` while the request goes on
  std::string error;                                // why, where finish_reason is `error`
  std::vector<TokenLogprobs> logprobs = {};         // of each token, where they were asked for
};

// Continuous batching with speculation over one target engine and any Drafter. Not thread-safe: one
// thread calls everything.
class Executor {
 public:
  // The engine and the resources are the caller's and outlive the executor. Throws Error for limits
  // that contradict each other or the drafter's needs.
  Executor(ModelEngine& target, ResourceManager& resources, std::unique_ptr<Drafter> drafter,
           const SchedulerLimits& limits);

  // Queues a request, behind all others: its id is higher than theirs. Throws Error if it could
  // never run, or asks for deeper drafts than there are; both numbers are named.
  void add(Request request);
  // Ends a request now; an unknown or finished id is ignored.
  void abort(std::int64_t request_id);
  // Runs one step: schedule and reserve, draft, verify, accept, commit, emit. One output for each
  // scheduled request. If a part of the step fails, the step's requests end with that error, and
  // everything else goes on.
  std::vector<StepOutput> step();

  bool has_work() const { return scheduler_.has_work(); }
  // Requests that hold blocks, and those that hold none yet or lost theirs.
  std::int64_t num_running() const { return scheduler_.num_running(); }
  std::int64_t num_waiting() const { return scheduler_.num_waiting(); }
  // Share of the blocks that nobody else could have now, of the fuller cache; 0 to 1.
  double kv_cache_usage() const { return resources_.usage(); }
  const ExecutorMetrics& metrics() const { return metrics_; }
  // Begins a new measurement; figures of running requests begin again too.
  void reset_metrics() { metrics_ = ExecutorMetrics(); }
  // Forgets what drafts were made of beyond the requests that were; there must be none now.
  void forget_ended() { drafter_->forget_ended(); }
  // Forgets the figures of one request; those in the total stay.
  void release_metrics(std::int64_t request_id) { metrics_.release(request_id); }

 private:
  std::vector<StepOutput> run(const StepPlan& plan);
  void restore(const StepPlan& plan);
  std::vector<StepOutput> conclude(std::span<const ScheduledRows> items, const DraftBatch& drafts,
                                   StepResult& result);
  void forget(Request& request);

  ModelEngine& target_;
  ResourceManager& resources_;
  std::unique_ptr<Drafter> drafter_;
  Scheduler scheduler_;
  std::map<std::int64_t, std::unique_ptr<Request>> requests_;  // unfinished ones, by id
  RequestProcessors processors_;
  ExecutorMetrics metrics_;
};

}  // namespace trtspec
