// NGramDrafter: prompt lookup; drafts continue an earlier occurrence of the newest tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <trtspec/ngram_indexes.hpp>
#include <trtspec/runtime/drafter.hpp>

namespace trtspec {

struct NGramOptions {
  std::int64_t max_draft_len;
  std::int32_t min_ngram;
  std::int32_t max_ngram;
};

// NgramIndexes as a drafter; no model, no cache.
class NGramDrafter final : public Drafter {
 public:
  static constexpr std::string_view kMethod = "ngram";

  // Throws Error unless max_draft_len >= 1 and 1 <= min_ngram <= max_ngram.
  explicit NGramDrafter(const NGramOptions& options);

  const DrafterNeeds& needs() const override { return needs_; }
  DraftBatch prepare_draft_tokens(const ScheduledBatch& batch) override;
  std::vector<std::int64_t> on_accepted(const ScheduledBatch& batch,
                                        const StepResult& result) override;
  void release(std::int64_t request_id) override { indexes_.release(request_id); }

 private:
  DrafterNeeds needs_;
  NgramIndexes indexes_;
};

}  // namespace trtspec
