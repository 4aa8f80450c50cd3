// TokenDrafter: a smaller language model drafts a chain or tree.
#include <trtspec/runtime/rollout_drafter.hpp>

#include <algorithm>

namespace trtspec {

RolloutDrafter::FirstPass TokenDrafter::first_pass(std::span<const Request* const> requests) {
  replaced_.clear();
  Parts parts;
  for (const Request* request : requests) {
    fed_[request->id] = request->size();
    add(*request, resources_.draft_committed(*request), request->size(), parts.emplace_back());
  }
  return {.groups = feed_but_last(parts), .hidden = {}};
}

std::vector<std::int64_t> TokenDrafter::on_accepted(const StepPlan& plan, const StepResult&) {
  replaced_.clear();
  std::vector<std::int64_t> lengths;
  Parts parts;
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
    // A call is to be no larger than the target's: what it is behind by is fed before.
    std::vector<RowGroup>& own = parts.emplace_back();
    if (start < item.start) add(request, start, item.start, own);
    add(request, item.start, end, own);
  }
  const std::vector<RowGroup> chunks = feed_but_last(parts);
  if (!chunks.empty()) engine_.feed(chunks, {});
  return lengths;
}

void TokenDrafter::add(const Request& request, std::int64_t begin, std::int64_t end,
                       std::vector<RowGroup>& parts) {
  for (const std::int64_t cut : ends(request, begin, end)) {
    parts.push_back(rows(request, begin, known(request, begin, cut)));
    begin = cut;
  }
}

std::vector<RowGroup> TokenDrafter::feed_but_last(const Parts& parts) {
  for (std::size_t next = 0;; ++next) {
    std::vector<RowGroup> groups;
    for (const auto& own : parts) {
      if (next + 1 < own.size()) groups.push_back(own[next]);
    }
    if (groups.empty()) break;
    engine_.feed(groups, {});
  }
  std::vector<RowGroup> last;
  for (const auto& own : parts) last.push_back(own.back());
  return last;
}

std::span<const std::int64_t> TokenDrafter::known(const Request& request, std::int64_t begin,
                                                  std::int64_t end) {
  const auto tokens =
      std::span(request.tokens)
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  const auto is_unknown = [limit = engine_.vocab_size()](std::int64_t token) {
    return token >= limit;
  };
  if (std::none_of(tokens.begin(), tokens.end(), is_unknown)) return tokens;
  auto& copy = replaced_.emplace_back(tokens.begin(), tokens.end());
  std::replace_if(copy.begin(), copy.end(), is_unknown, 0);
  return copy;
}

}  // namespace trtspec
