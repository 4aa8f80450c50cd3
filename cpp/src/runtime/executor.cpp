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

// Of a batch, from what became of the requests that sample.
StepResult of_all(const ScheduledBatch& batch, StepResult sampled) {
  StepResult result;
  for (std::size_t i = 0; const ScheduledRequest& item : batch.items) {
    if (item.samples) {
      result.add(sampled.ends[i]);
      result.start.back() = sampled.start[i + 1];
      result.logprobs.back() = std::move(sampled.logprobs[i]);
      ++i;
    } else {
      result.add();
    }
  }
  result.tokens = std::move(sampled.tokens);
  result.rows = std::move(sampled.rows);
  return result;
}

// Where the rows lie that stay, among all of the step.
at::Tensor kept_rows(const ScheduledBatch& batch, const StepResult& result,
                     std::span<const RowGroup> groups) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0, first = 0; i < std::ssize(batch.items); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t fed = batch.items[at].num_rows;
    for (std::int64_t row = 0; !result.failed(at) && row < fed; ++row) rows.push_back(first + row);
    for (const std::int64_t row : result.accepted_rows(at)) {
      if (row > 0) rows.push_back(first + fed - 1 + row);
    }
    first += groups[at].num_rows();
  }
  return host_copy(rows);
}

std::string no_usable_logits(const Request& request) {
  return "the model returned no usable logits at output token " +
         std::to_string(request.num_output_tokens()) +
         " (NaN, or every token excluded); check the checkpoint and the request's bans, or use "
         "dtype float32";
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
  const ScheduledBatch batch = ScheduledBatch::of(plan);
  for (const ScheduledRequest& item : std::span(batch.items).last(batch.num_begun)) {
    if (item.request->num_cached_tokens >= 0) continue;  // it was preempted
    item.request->num_cached_tokens = item.start;
    if (resources_.target().enable_reuse()) {
      metrics_.record_prefix(item.request->num_prompt_tokens, item.start);
    }
  }
  std::vector<StepOutput> outputs;
  try {
    outputs = run(batch, plan.items);
  } catch (const std::exception& error) {
    outputs.clear();
    for (const ScheduledRequest& item : batch.items) {
      item.request->finish_reason = FinishReason::error;
      outputs.push_back({.request_id = item.request->id,
                         .tokens = {},
                         .error = std::string("the step failed: ") + error.what()});
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) emit(*batch.items[i].request, outputs[i]);
  metrics_.record_step(between(began, read_clocks(target_, drafter_->engine())));
  return outputs;
}

std::vector<StepOutput> Executor::run(const ScheduledBatch& batch,
                                      std::span<const ScheduledRows> items) {
  for (const Request* request : batch.preempted) drafter_->release(request->id);
  const DraftBatch drafts = drafter_->prepare_draft_tokens(batch);
  std::vector<RowGroup> groups;
  std::vector<const Request*> sampling;
  std::vector<std::int64_t> sampled;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Request& request = *batch.items[i].request;
    groups.push_back(rows_of(items[i], resources_.target_block_table(request), drafts[i]));
    if (!items[i].samples) continue;
    sampling.push_back(&request);
    sampled.push_back(static_cast<std::int64_t>(i));
  }
  const ModelEngine::Output output = target_.forward(groups);
  StepResult result;
  if (!sampling.empty()) {
    result = verify(sampling, drafts.pick(sampled), processors_, output.logits, target_.device());
  }
  result = of_all(batch, std::move(result));
  if (drafter_->needs().reads_hidden) {
    if (!output.hidden.defined()) {
      throw std::logic_error("the target was built without hidden states");
    }
    // Before requests are extended, as the groups' tokens lie in them.
    result.hidden = at::index_select(output.hidden, 0, kept_rows(batch, result, groups));
  }
  std::vector<StepOutput> outputs = conclude(batch, drafts, result);
  extend(items, result);
  const std::vector<std::int64_t> drafted = drafter_->on_accepted(batch, result);
  const Moves moves = compaction(items, result, resources_.target());
  if (!moves.from.empty()) target_.compact(moves.from, moves.to);
  commit(items, result, drafted, resources_);
  return outputs;
}

// What the target emits for each request, and whether its text ends with that.
std::vector<StepOutput> Executor::conclude(const ScheduledBatch& batch, const DraftBatch& drafts,
                                           StepResult& result) {
  std::vector<StepOutput> outputs;
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const ScheduledRequest& item = batch.items[i];
    Request& request = *item.request;
    const std::span<const std::int64_t> emitted = result.emitted(i);
    StepOutput& output = outputs.emplace_back(StepOutput{.request_id = request.id,
                                                         .tokens = {emitted.begin(), emitted.end()},
                                                         .error = {},
                                                         .logprobs = std::move(result.logprobs[i])});
    if (result.failed(i)) output.error = no_usable_logits(request);
    request.finish_reason = result.ends[i];
    if (item.is_generation && output.error.empty()) {
      metrics_.record_verify(request.id, result.accepted_rows(i), drafts[i]);
    }
  }
  return outputs;
}

// Closes the request's step; a request whose text ended gives everything back.
void Executor::emit(Request& request, StepOutput& output) {
  output.finish_reason = request.finish_reason;
  if (request.is_finished()) forget(request);
}

void Executor::forget(Request& request) {
  const std::int64_t id = request.id;
  scheduler_.finish(request);
  requests_.erase(id);
  processors_.release(id);
  drafter_->release(id);
}

}  // namespace trtspec
