#include <ATen/ops/index_select.h>

#include <trtspec/error.hpp>
#include <trtspec/runtime/commit.hpp>
#include <trtspec/runtime/executor.hpp>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/packing.hpp>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

namespace trtspec {

namespace {

const DrafterNeeds& checked(const DrafterNeeds& needs) {
  needs.check();
  return needs;
}

// What the engines' clocks show, to be taken again at the end of a step.
StepClock read_clocks(const ModelEngine& target, const ModelEngine* draft) {
  using Seconds = std::chrono::duration<double>;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {.seconds = std::chrono::duration_cast<Seconds>(now).count(),
          .target_seconds = target.seconds(),
          .draft_seconds = draft ? draft->seconds() : 0.0,
          .target_calls = target.num_calls(),
          .draft_calls = draft ? draft->num_calls() : 0};
}

StepClock between(const StepClock& began, const StepClock& ended) {
  return {.seconds = ended.seconds - began.seconds,
          .target_seconds = ended.target_seconds - began.target_seconds,
          .draft_seconds = ended.draft_seconds - began.draft_seconds,
          .target_calls = ended.target_calls - began.target_calls,
          .draft_calls = ended.draft_calls - began.draft_calls};
}

std::string no_usable_logits(const Request& request) {
  return "the model returned no usable logits at output token " +
         std::to_string(request.num_output_tokens()) +
         " (NaN, or every token excluded); check the checkpoint and the request's bans, or use "
         "dtype float32, or kv_cache_dtype bfloat16, whose range is wider than float16's";
}

}  // namespace

Executor::Executor(ModelEngine& target, ResourceManager& resources,
                   std::unique_ptr<Drafter> drafter, const SchedulerLimits& limits)
    : target_(target),
      resources_(resources),
      drafter_(std::move(drafter)),
      scheduler_(resources, limits, checked(drafter_->needs()).limits()) {}

void Executor::add(Request request) {
  if (requests_.contains(request.id)) {
    throw std::logic_error("a request with this id was added already");
  }
  const std::int64_t deepest = drafter_->needs().max_depth;
  if (request.options.num_speculative_tokens.value_or(0) > deepest) {
    throw Error("num_speculative_tokens=" + std::to_string(request.max_draft_len) +
                " was asked for, but at most " + std::to_string(deepest) +
                " tokens are drafted here; lower it, or leave it out");
  }
  auto owned = std::make_unique<Request>(std::move(request));
  scheduler_.add(*owned);
  const std::int64_t id = owned->id;
  requests_.emplace(id, std::move(owned));
}

void Executor::abort(std::int64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found != requests_.end()) forget(*found->second);
}

std::vector<StepOutput> Executor::step() {
  const StepClock began = read_clocks(target_, drafter_->engine());
  const StepPlan plan = scheduler_.schedule();
  for (const ScheduledRows& item : std::span(plan.items).last(std::size_t(plan.num_begun))) {
    Request& request = request_of(item);
    if (request.num_cached_tokens >= 0) continue;  // it was preempted
    request.num_cached_tokens = item.start;
    if (resources_.target().enable_reuse()) {
      metrics_.record_prefix(request.num_prompt_tokens, item.start);
    }
  }
  std::vector<StepOutput> outputs;
  try {
    outputs = run(plan);
  } catch (const std::exception& error) {
    outputs.clear();
    for (const ScheduledRows& item : plan.items) {
      request_of(item).finish_reason = FinishReason::error;
      outputs.push_back({.request_id = item.sequence->id,
                         .tokens = {},
                         .error = std::string("the step failed: ") + error.what()});
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Request& request = request_of(plan.items[i]);
    outputs[i].finish_reason = request.finish_reason;
    if (request.is_finished()) forget(request);
  }
  metrics_.record_step(between(began, read_clocks(target_, drafter_->engine())));
  return outputs;
}

std::vector<StepOutput> Executor::run(const StepPlan& plan) {
  const std::span<const ScheduledRows> items = plan.items;
  for (const Sequence* sequence : plan.preempted) drafter_->release(sequence->id);
  const DraftBatch drafts = drafter_->prepare_draft_tokens(plan);
  std::vector<RowGroup> groups;
  for (std::size_t i = 0; i < items.size(); ++i) {
    groups.push_back(
        rows_of(items[i], resources_.target_block_table(*items[i].sequence), drafts[i]));
    if (!plan.states.empty()) groups.back().state = plan.states[i].slot;
  }
  restore(plan);
  const ModelEngine::Output output = target_.forward(groups);
  StepResult result = verify(items, drafts, processors_, output.logits, target_.device());
  std::vector<StepOutput> outputs = conclude(items, drafts, result);
  extend(items, result);
  if (drafter_->needs().reads_hidden) {
    if (!output.hidden.defined()) {
      throw std::logic_error("the target was built without hidden states");
    }
    result.hidden = at::index_select(output.hidden, 0, host_copy(kept_rows(items, result, drafts)));
  }
  const std::vector<std::int64_t> drafted = drafter_->on_accepted(plan, result);
  const Moves moves = compaction(items, result, resources_.target());
  if (!moves.from.empty()) target_.compact(moves.from, moves.to);
  if (!plan.states.empty()) {
    std::vector<std::int64_t> nodes;
    for (std::size_t i = 0; i < items.size(); ++i) nodes.push_back(drafts[i].size());
    target_.move_states(state_moves(items, plan.states, result, nodes));
  }
  commit(items, result, drafted, resources_);
  return outputs;
}

// Copies the snapshots that requests begin on.
void Executor::restore(const StepPlan& plan) {
  Moves moves;
  for (const auto& [slot, source, snapshot] : plan.states) {
    if (source < 0) continue;
    moves.from.push_back(source);
    moves.to.push_back(slot);
  }
  if (!moves.from.empty()) target_.copy_states(moves);
}

// What the target emits for each request, and whether its text ends with that.
std::vector<StepOutput> Executor::conclude(std::span<const ScheduledRows> items,
                                           const DraftBatch& drafts, StepResult& result) {
  std::vector<StepOutput> outputs;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Request& request = request_of(items[i]);
    const std::span<const std::int64_t> emitted = result.emitted(i);
    StepOutput& output =
        outputs.emplace_back(StepOutput{.request_id = request.id,
                                        .tokens = {emitted.begin(), emitted.end()},
                                        .error = {},
                                        .logprobs = std::move(result.logprobs[i])});
    if (result.failed(i)) output.error = no_usable_logits(request);
    request.finish_reason = result.ends[i];
    if (items[i].is_generation && output.error.empty()) {
      metrics_.record_verify(request.id, result.accepted_rows(i), drafts[i]);
    }
  }
  return outputs;
}

void Executor::forget(Request& request) {
  const std::int64_t id = request.id;
  scheduler_.finish(request);
  requests_.erase(id);
  processors_.release(id);
  drafter_->release(id);
}

}  // namespace trtspec
