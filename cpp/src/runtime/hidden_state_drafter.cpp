// HiddenStateDrafter: a small network that reads the target's states drafts, one engine call a step.
#include <ATen/ops/cat.h>

#include <trtspec/runtime/rollout_drafter.hpp>

#include <stdexcept>
#include <utility>

namespace trtspec {

RolloutDrafter::FirstPass HiddenStateDrafter::first_pass(std::span<const Request* const> requests) {
  FirstPass pass;
  std::vector<at::Tensor> states;
  for (const Request* request : requests) {
    at::Tensor hidden = pending_.extract(request->id).mapped();
    const std::int64_t start = resources_.draft_committed(*request);
    const std::int64_t fed = hidden.size(0), final_rows = num_final(fed);
    fed_[request->id] = start + final_rows;
    if (final_rows < fed) pending_[request->id] = hidden.narrow(0, final_rows, fed - final_rows);
    pass.groups.push_back(group(*request, start, fed));
    states.push_back(std::move(hidden));
  }
  pass.hidden = at::cat(states);
  return pass;
}

std::vector<std::int64_t> HiddenStateDrafter::on_accepted(const StepPlan& plan,
                                                          const StepResult& result) {
  std::vector<std::int64_t> lengths;
  std::vector<RowGroup> groups;
  std::vector<at::Tensor> states;
  for (std::int64_t first = 0; const ScheduledRows& item : plan.items) {
    const Request& request = request_of(item);
    const std::int64_t kept = result.num_kept(lengths.size(), item.num_rows);
    at::Tensor hidden = result.hidden.narrow(0, first, kept);
    first += kept;
    if (!request.may_draft()) {
      lengths.push_back(resources_.draft_committed(request));
      continue;
    }
    const auto rolled_out = fed_.extract(request.id);
    const std::int64_t start =
        rolled_out ? rolled_out.mapped() : resources_.draft_committed(request);
    const auto pending = pending_.find(request.id);
    if (pending != pending_.end()) hidden = at::cat({pending->second, hidden});
    // Of a prefill chunk all states but the newest are fed, at the end of a text those that fill a
    // block, where that makes rows final; a failed request has none.
    const std::int64_t rows = hidden.size(0);
    std::int64_t fed = item.is_generation || rows == 0 ? 0 : rows - 1;
    if (request.is_finished() && kept > 0) {
      // Else its next turn would find more in the target's cache than in the draft's.
      fed = rows_to_offer(request, start, rows, needs().lookahead - 1);
    }
    const std::int64_t final_rows = num_final(fed);
    if (final_rows > 0) {
      groups.push_back(group(request, start, fed));
      states.push_back(hidden.narrow(0, 0, fed));
      // A copy: a view would keep the states of the whole chunk.
      hidden = hidden.narrow(0, final_rows, rows - final_rows).clone();
    }
    pending_[request.id] = std::move(hidden);
    lengths.push_back(start + final_rows);
  }
  if (!groups.empty()) engine_.feed(groups, at::cat(states));
  return lengths;
}

void HiddenStateDrafter::release(std::int64_t request_id) {
  pending_.erase(request_id);
  fed_.erase(request_id);
}

RowGroup HiddenStateDrafter::group(const Request& request, std::int64_t start,
                                   std::int64_t count) const {
  if (start + 1 + count > request.size()) {
    throw std::logic_error("a state's next token is known when its row is fed");
  }
  return rows(request, start,
              std::span(request.tokens)
                  .subspan(static_cast<std::size_t>(start + 1), static_cast<std::size_t>(count)));
}

}  // namespace trtspec
