#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <trtspec/runtime/executor.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace trtspec {

struct Executor::Judged {
  ScheduledRequest item;
  StepOutput output;
  Accepted accepted;

  static Judged failed(const ScheduledRequest& item, std::string error) {
    item.request->finish_reason = FinishReason::error;
    return {item, {.request_id = item.request->id, .tokens = {}, .error = std::move(error)}, {}};
  }
};

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

// The states of one request's accepted rows; `first` is its first row of the step.
at::Tensor rows_of(const at::Tensor& hidden, std::int64_t first,
                   std::span<const std::int64_t> rows) {
  at::Tensor index = at::empty({static_cast<std::int64_t>(rows.size())}, at::kLong);
  std::transform(rows.begin(), rows.end(), index.mutable_data_ptr<std::int64_t>(),
                 [first](std::int64_t row) { return first + row; });
  return at::index_select(hidden, 0, index);
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
  const ScheduledBatch batch = ScheduledBatch::of(scheduler_.schedule());
  for (Request* request : batch.preempted) request->draft = TokenTree();
  for (const ScheduledRequest& item : std::span(batch.items).last(batch.num_begun)) {
    if (item.request->num_cached_tokens >= 0) continue;  // it was preempted
    item.request->num_cached_tokens = item.start;
    if (resources_.target().enable_reuse()) {
      metrics_.record_prefix(item.request->num_prompt_tokens, item.start);
    }
  }
  std::vector<Judged> judged;
  try {
    judged = run(batch);
  } catch (const std::exception& error) {
    judged.clear();
    for (const ScheduledRequest& item : batch.items) {
      judged.push_back(Judged::failed(item, std::string("the step failed: ") + error.what()));
    }
  }
  std::vector<StepOutput> outputs;
  for (Judged& j : judged) outputs.push_back(emit(j));
  metrics_.record_step(between(began, read_clocks(target_, drafter_->engine())));
  return outputs;
}

std::vector<Executor::Judged> Executor::run(const ScheduledBatch& batch) {
  for (const Request* request : batch.preempted) drafter_->release(request->id);
  drafter_->prepare_draft_tokens(batch);
  std::vector<RowGroup> groups;
  std::vector<const Request*> sampling;
  for (const ScheduledRequest& item : batch.items) {
    groups.push_back(rows(item));
    if (item.samples) sampling.push_back(item.request);
  }
  const ModelEngine::Output output = target_.forward(groups);
  std::vector<Verdict> verdicts;
  if (!sampling.empty()) {
    verdicts = verify(sampling, processors_, output.logits, target_.device());
  }

  // Before any request is extended, as the groups' tokens lie in the requests.
  std::vector<std::int64_t> first_rows;
  for (std::int64_t row = 0; const RowGroup& group : groups) {
    first_rows.push_back(row);
    row += group.num_rows();
  }
  std::vector<Judged> judged;
  for (auto verdict = verdicts.begin(); const ScheduledRequest& item : batch.items) {
    judged.push_back(accept(item, item.samples ? &*verdict++ : nullptr));
  }
  std::vector<Accepted> accepted;
  for (std::size_t i = 0; i < judged.size(); ++i) {
    if (drafter_->needs().reads_hidden) {
      if (!output.hidden.defined()) {
        throw std::logic_error("the target was built without hidden states");
      }
      judged[i].accepted.hidden = rows_of(output.hidden, first_rows[i], judged[i].accepted.rows);
    }
    accepted.push_back(judged[i].accepted);
  }
  const std::vector<std::int64_t> drafted = drafter_->on_accepted(batch, accepted);
  commit(judged, drafted);
  return judged;
}

RowGroup Executor::rows(const ScheduledRequest& item) const {
  const Request& request = *item.request;
  return {.tokens = std::span(request.tokens)
                        .subspan(static_cast<std::size_t>(item.start),
                                 static_cast<std::size_t>(item.num_rows)),
          .context = item.start,
          .blocks = resources_.target_block_table(request),
          .tree = item.is_generation ? &request.draft : nullptr,
          .last_logits = item.samples};
}

// Extends the request by what the target emits.
Executor::Judged Executor::accept(const ScheduledRequest& item, const Verdict* verdict) {
  Request& request = *item.request;
  Judged judged{item, {.request_id = request.id, .tokens = {}, .error = {}}, {}};
  Accepted& accepted = judged.accepted;
  accepted.rows.resize(static_cast<std::size_t>(item.num_rows));
  std::iota(accepted.rows.begin(), accepted.rows.end(), std::int64_t{0});
  if (!verdict) return judged;
  if (verdict->failed) {
    return Judged::failed(item, "the model returned no usable logits at output token " +
                                    std::to_string(request.num_output_tokens()) +
                                    " (NaN, or every token excluded); check the checkpoint "
                                    "and the request's bans, or use dtype float32");
  }
  accepted.tokens = verdict->tokens;
  request.tokens.insert(request.tokens.end(), verdict->tokens.begin(), verdict->tokens.end());
  request.finish_reason = verdict->reason;
  // Rows of accepted drafts lie behind the fed tokens; the last emitted token has no row yet.
  const auto emitted = static_cast<std::int64_t>(accepted.tokens.size());
  for (std::int64_t i = 1; i < emitted; ++i) {
    accepted.rows.push_back(item.num_rows - 1 + verdict->rows[static_cast<std::size_t>(i)]);
  }
  if (item.is_generation) {
    metrics_.record_verify(request.id, emitted, request.draft.size(), request.draft.max_depth());
  }
  judged.output.tokens = accepted.tokens;
  judged.output.logprobs = verdict->logprobs;
  return judged;
}

// Makes accepted rows contiguous in the target's cache and moves both caches' counters.
void Executor::commit(std::span<const Judged> judged, std::span<const std::int64_t> drafted) {
  if (drafted.size() != judged.size()) throw std::logic_error("the drafter answered for others");
  const KVCache& cache = resources_.target();
  std::vector<std::int64_t> src;
  std::vector<std::int64_t> dst;
  for (const Judged& j : judged) {
    const std::int64_t id = j.item.request->id;
    for (std::int64_t position = j.item.start; const std::int64_t row : j.accepted.rows) {
      if (j.item.start + row != position) {
        src.push_back(cache.slot(id, j.item.start + row));
        dst.push_back(cache.slot(id, position));
      }
      ++position;
    }
  }
  if (!src.empty()) target_.compact(src, dst);
  for (std::size_t i = 0; i < judged.size(); ++i) {
    const Judged& j = judged[i];
    if (j.item.request->finish_reason == FinishReason::error) continue;
    const auto kept = static_cast<std::int64_t>(j.accepted.rows.size());
    resources_.commit(*j.item.request, j.item.start + kept,
                      drafted.subspan(i, resources_.num_drafts()));
  }
}

// Closes the request's step; a request whose text ended gives everything back.
StepOutput Executor::emit(Judged& judged) {
  Request& request = *judged.item.request;
  request.draft = TokenTree();
  judged.output.finish_reason = request.finish_reason;
  if (request.is_finished()) forget(request);
  return std::move(judged.output);
}

void Executor::forget(Request& request) {
  const std::int64_t id = request.id;
  scheduler_.finish(request);
  requests_.erase(id);
  processors_.release(id);
  drafter_->release(id);
}

}  // namespace trtspec
