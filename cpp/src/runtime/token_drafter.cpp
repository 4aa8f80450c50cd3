// TokenDrafter: a smaller language model drafts a chain or tree.
#include <trtspec/runtime/rollout_drafter.hpp>

#include <algorithm>

namespace trtspec {

RolloutDrafter::FirstPass TokenDrafter::first_pass(std::span<const Request* const> requests) {
  replaced_.clear();
  FirstPass pass;
  for (const Request* request : requests) {
    const std::int64_t start = resources_.draft_committed(*request);
    fed_[request->id] = request->size();
    pass.groups.push_back(rows(*request, start, known(*request, start, request->size())));
  }
  return pass;
}

std::vector<std::int64_t> TokenDrafter::on_accepted(const StepPlan& plan,
                                                    const StepResult&) {
  replaced_.clear();
  std::vector<std::int64_t> lengths;
  std::vector<RowGroup> behind, chunks;  // apart: a call is to be no larger than the target's
  const auto group = [&](const Request& request, std::int64_t begin, std::int64_t end) {
    return rows(request, begin, known(request, begin, end));
  };
  for (const ScheduledRows& item : plan.items) {
    const Request& request = request_of(item);
    const std::int64_t start = resources_.draft_committed(request);
    if (item.is_generation || !request.may_draft()) {
      const auto fed = fed_.extract(request.id);
      lengths.push_back(fed ? fed.mapped() : start);
      continue;
    }
    const std::int64_t end = item.start + item.num_rows;
    lengths.push_back(end);
    if (start < item.start) behind.push_back(group(request, start, item.start));
    chunks.push_back(group(request, item.start, end));
  }
  if (!behind.empty()) engine_.feed(behind, {});
  if (!chunks.empty()) engine_.feed(chunks, {});
  return lengths;
}

std::span<const std::int64_t> TokenDrafter::known(const Request& request, std::int64_t begin,
                                                  std::int64_t end) {
  const auto tokens = std::span(request.tokens)
                          .subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(end - begin));
  const auto is_unknown = [limit = engine_.vocab_size()](std::int64_t token) {
    return token >= limit;
  };
  if (std::none_of(tokens.begin(), tokens.end(), is_unknown)) return tokens;
  auto& copy = replaced_.emplace_back(tokens.begin(), tokens.end());
  std::replace_if(copy.begin(), copy.end(), is_unknown, 0);
  return copy;
}

}  // namespace trtspec
