#include <trtspec/error.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

namespace trtspec {

NGramDrafter::NGramDrafter(const NGramOptions& options) : options_(options) {
  NgramIndex(options.min_ngram, options.max_ngram);  // refuses what does not fit
  if (options.max_draft_len < 1) {
    throw Error("max_draft_len=" + std::to_string(options.max_draft_len) + " must be at least 1");
  }
  needs_.max_nodes = needs_.max_depth = options.max_draft_len;
}

DraftBatch NGramDrafter::prepare_draft_tokens(const StepPlan& plan) {
  DraftBatch drafts;
  for (const ScheduledRows& item : plan.items) {
    const Request& request = request_of(item);
    const std::int64_t count = std::min({item.max_nodes, needs_.max_nodes, request.draft_depth()});
    std::vector<std::int64_t> chain;
    if (count > 0) {
      NgramIndex& index =
          indexes_.try_emplace(request.id, options_.min_ngram, options_.max_ngram).first->second;
      index.extend(std::span(request.tokens).subspan(std::size_t(index.size())));
      chain = index.propose(count);
      chain.erase(std::ranges::find_first_of(chain, request.end_tokens), chain.end());
    }
    std::vector<std::int32_t> parents(chain.size());
    std::iota(parents.begin(), parents.end(), -1);
    drafts.append({chain, parents, {}});
  }
  return drafts;
}

std::vector<std::int64_t> NGramDrafter::on_accepted(const StepPlan&, const StepResult&) {
  return {};
}

std::vector<std::int64_t> NGramDrafter::live_requests() const {
  std::vector<std::int64_t> ids;
  for (const auto& [id, index] : indexes_) ids.push_back(id);
  return ids;
}

}  // namespace trtspec
