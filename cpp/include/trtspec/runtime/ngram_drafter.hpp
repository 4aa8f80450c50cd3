// NGramDrafter: prompt lookup; drafts continue an earlier occurrence of the newest tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <trtspec/ngram_index.hpp>
#include <trtspec/runtime/drafter.hpp>
#include <vector>

namespace trtspec {

struct NGramOptions {
  std::int64_t max_draft_len;
  std::int32_t min_ngram;
  std::int32_t max_ngram;
};

// Over an NgramIndex of each request, from its first draft on; no model, no cache.
class NGramDrafter final : public Drafter {
 public:
  static constexpr std::string_view kMethod = "ngram";

  // Throws Error unless max_draft_len >= 1 and 1 <= min_ngram <= max_ngram.
  explicit NGramDrafter(const NGramOptions& options);

  const DrafterNeeds& needs() const override { return needs_; }
  DraftBatch prepare_draft_tokens(const StepPlan& plan) override;
  std::vector<std::int64_t> on_accepted(const StepPlan& plan, const StepResult& result) override;
  void release(std::int64_t request_id) override { indexes_.erase(request_id); }
  std::vector<std::int64_t> live_requests() const;

 private:
  NGramOptions options_;
  DrafterNeeds needs_;
  std::map<std::int64_t, NgramIndex> indexes_;
};

}  // namespace trtspec
