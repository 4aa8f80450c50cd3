#include <trtspec/error.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>

#include <algorithm>
#include <string>

namespace trtspec {

NGramDrafter::NGramDrafter(const NGramOptions& options)
    : indexes_(options.min_ngram, options.max_ngram) {
  if (options.max_draft_len < 1) {
    throw Error("max_draft_len=" + std::to_string(options.max_draft_len) + " must be at least 1");
  }
  needs_.max_nodes = needs_.max_depth = options.max_draft_len;
}

DraftBatch NGramDrafter::prepare_draft_tokens(const ScheduledBatch& batch) {
  DraftBatch drafts;
  for (const ScheduledRequest& item : batch.items) {
    const Request& request = *item.request;
    const std::int64_t count =
        std::min({item.max_nodes, needs_.max_nodes, request.draft_depth()});
    if (count <= 0) {
      drafts.append();
      continue;
    }
    const auto known = static_cast<std::size_t>(indexes_.known(request.id));
    indexes_.draft(request.id, std::span(request.tokens).subspan(known), count, request.end_tokens,
                   drafts);
  }
  return drafts;
}

std::vector<std::int64_t> NGramDrafter::on_accepted(const ScheduledBatch&, const StepResult&) {
  return {};
}

}  // namespace trtspec
