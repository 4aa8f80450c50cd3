#include <trtspec/error.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>

#include <algorithm>
#include <string>

namespace trtspec {

NGramDrafter::NGramDrafter(const NGramOptions& options) : options_(options) {
  if (options.max_draft_len < 1) {
    throw Error("max_draft_len=" + std::to_string(options.max_draft_len) + " must be at least 1");
  }
  NgramIndex(options.min_ngram, options.max_ngram);  // refuses what does not fit
  needs_.max_nodes = needs_.max_depth = options.max_draft_len;
}

void NGramDrafter::prepare_draft_tokens(const ScheduledBatch& batch) {
  for (const ScheduledRequest& item : batch.items) {
    if (!item.is_generation) continue;
    Request& request = *item.request;
    const std::int64_t count =
        std::min({item.max_nodes, options_.max_draft_len, request.remaining_tokens() - 1});
    if (count <= 0) {
      request.draft = TokenTree();
      continue;
    }
    NgramIndex& index =
        indexes_.try_emplace(request.id, options_.min_ngram, options_.max_ngram).first->second;
    index.extend(std::span(request.tokens).subspan(static_cast<std::size_t>(index.size())));
    // What follows an end token is never emitted, and the end itself needs no draft.
    request.draft = TokenTree::chain(index.propose(count)).without(request.end_tokens);
  }
}

std::vector<std::int64_t> NGramDrafter::on_accepted(const ScheduledBatch&, const StepResult&) {
  return {};
}

}  // namespace trtspec
