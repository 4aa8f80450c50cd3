#include <trtspec/runtime/rollout_drafter.hpp>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/runtime/sampler.hpp>

namespace trtspec {

namespace {

void check_rollout(const ModelEngine::Rollout& rollout, std::int64_t requests) {
  const auto fits = [&](const at::Tensor& x, at::ScalarType dtype) {
    return x.defined() && x.dim() == 2 && x.size(0) == requests &&
           x.size(1) == rollout.tokens.size(1) && x.scalar_type() == dtype && x.is_contiguous() &&
           x.device().is_cpu();
  };
  if (!fits(rollout.tokens, at::kLong) || !fits(rollout.parents, at::kInt) ||
      !fits(rollout.scores, at::kFloat)) {
    throw std::runtime_error(
        "the draft engine must return tokens int64, parents int32 and scores "
        "float32, each [" +
        std::to_string(requests) + ", nodes], on the CPU");
  }
}

}  // namespace

RolloutShape RolloutShape::fixed(std::span<const std::vector<std::int64_t>> choices,
                                 std::int64_t lookahead) {
  if (choices.empty()) throw Error("a static tree needs at least one path, such as [0]");
  RolloutShape shape{0, static_cast<std::int64_t>(choices.size()), 0, lookahead};
  std::set<std::vector<std::int64_t>> inner;
  for (const auto& path : choices) {
    shape.num_steps = std::max(shape.num_steps, static_cast<std::int64_t>(path.size()));
    if (path.size() > 1) inner.emplace(path.begin(), path.end() - 1);
  }
  shape.num_rollout_rows = static_cast<std::int64_t>(inner.size());
  return shape;
}

DrafterNeeds RolloutShape::needs() const {
  return {.max_nodes = num_nodes,
          .max_depth = std::min(num_steps, num_nodes),
          .draft_slots = num_rollout_rows,
          .has_draft_cache = true,
          .lookahead = lookahead,
          .reads_hidden = lookahead > 0};
}

RowGroup RolloutDrafter::rows(const Request& request, std::int64_t start,
                              std::span<const std::int64_t> tokens) const {
  const KVCache& cache = resources_.draft();
  RowGroup group{.tokens = tokens,
                 .context = start - resources_.draft_absent(request),
                 .blocks = resources_.draft_block_table(request)};
  if (cache.keeps_states()) {
    group.state = cache.state(request.id);
    if (group.context == cache.committed(request.id)) group.source = cache.source(request.id);
    const std::int64_t end = group.context + group.num_rows();
    const Snapshot kept = resources_.keep_draft(request, group.context, end);
    if (kept.rows == end) group.snapshot = kept.slot;
  }
  return group;
}

std::vector<std::int64_t> RolloutDrafter::ends(const Request& request, std::int64_t start,
                                               std::int64_t end) const {
  const std::int64_t absent = resources_.draft_absent(request);
  std::vector<std::int64_t> ends;
  Snapshot kept = resources_.keep_draft(request, start - absent, end - absent);
  while (kept.slot >= 0 && kept.rows < end - absent) {
    ends.push_back(kept.rows + absent);
    kept = resources_.keep_draft(request, kept.rows, end - absent);
  }
  ends.push_back(end);
  return ends;
}

std::int64_t RolloutDrafter::rows_to_offer(const Request& request, std::int64_t start,
                                           std::int64_t count, std::int64_t beyond) const {
  const KVCache& cache = resources_.draft();
  if (!cache.enable_reuse()) return 0;
  const std::int64_t size = cache.block_size(), first = start - resources_.draft_absent(request);
  const auto held = static_cast<std::int64_t>(resources_.draft_block_table(request).size());
  const std::int64_t end = (first + std::min(count, held * size - first) - beyond) / size * size;
  return end > first ? end - first + beyond : 0;
}

DraftBatch RolloutDrafter::prepare_draft_tokens(const StepPlan& plan) {
  std::vector<bool> has_row;  // of each item, in the rollout
  std::vector<const Request*> requests;
  SamplingTable sampling;
  for (const ScheduledRows& item : plan.items) {
    const Request& request = request_of(item);
    has_row.push_back(item.max_nodes > 0 && can_draft(request));
    if (!has_row.back()) continue;
    requests.push_back(&request);
    sampling.add(request);
  }
  if (requests.empty()) return DraftBatch(plan.items.size());
  const auto depth_of = [this](const Request& request) {
    return std::min(needs_.max_depth, request.draft_depth());
  };
  // A tree of fewer depths would have other nodes, so that drafts depended on the batch.
  const bool is_chain = needs_.max_nodes == needs_.max_depth;
  StopRule rule{.max_depth = is_chain ? 0 : needs_.max_depth, .p_min = p_min_};
  for (const Request* request : requests) {
    rule.max_depth = std::max(rule.max_depth, depth_of(*request));
  }
  const FirstPass pass = first_pass(requests);
  const ModelEngine::Rollout rollout =
      engine_.rollout(pass.groups, sampling.columns(), pass.hidden, rule);
  check_rollout(rollout, std::ssize(requests));
  const auto count = static_cast<std::size_t>(rollout.tokens.size(1));
  const auto* tokens = rollout.tokens.const_data_ptr<std::int64_t>();
  const auto* parents = rollout.parents.const_data_ptr<std::int32_t>();
  const auto* scores = rollout.scores.const_data_ptr<float>();
  DraftBatch drafts;
  for (std::size_t i = 0; const ScheduledRows& item : plan.items) {
    if (!has_row[i++]) {
      drafts.append();
      continue;
    }
    const Request& request = request_of(item);
    drafts.append_best({{tokens, count}, {parents, count}, {scores, count}},
                       {request.end_tokens, depth_of(request), item.max_nodes});
    tokens += count, parents += count, scores += count;
  }
  return drafts;
}

}  // namespace trtspec
