// SuffixDrafter: drafts continue the text as it, or an earlier response, went on before.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <trtspec/runtime/drafter.hpp>
#include <trtspec/suffix_cache.hpp>
#include <vector>

namespace trtspec {

// Suffix decoding, with the options and the defaults of Python's SuffixDecodingConfig.
struct SuffixDecoding {
  std::int64_t max_draft_len = 24;           // most nodes a step
  std::int32_t max_tree_depth = 24;          // the longest string counted, match and draft together
  std::int64_t max_cached_requests = 10000;  // responses kept; 0: none, -1: no limit
  std::int64_t max_cached_tokens = 1 << 22;  // of all kept responses
  double max_spec_factor = 1.0;  // a match of m tokens is continued by factor * m + offset
  double max_spec_offset = 0.0;
  double min_token_prob = 0.1;  // of the path down to a node
  bool tree = true;             // the likeliest nodes, else one path

  // Throws Error for a value that cannot be, naming it by its flag, and the limit.
  void check() const;
  // The longest match allows the largest draft, and both fit into the tree's depth.
  DrafterNeeds needs() const;
};

// Over a SuffixCache; no model, no K/V. The text of a request enters its own tree while its prompt
// is prefilled, and both trees as its tokens are accepted. A response stays in the cache when its
// request finishes, is aborted or is preempted; a preempted one goes on with it.
class SuffixDrafter final : public Drafter {
 public:
  static constexpr std::string_view kMethod = "suffix";

  // Throws Error as SuffixDecoding::check does.
  explicit SuffixDrafter(const SuffixDecoding& config);

  const DrafterNeeds& needs() const override { return needs_; }
  DraftBatch prepare_draft_tokens(const StepPlan& plan) override;
  std::vector<std::int64_t> on_accepted(const StepPlan& plan, const StepResult& result) override;
  void release(std::int64_t request_id) override;
  void forget_ended() override;
  std::vector<std::int64_t> live_requests() const;
  SuffixCache& cache() { return cache_; }

 private:
  SuffixCache make_cache() const;
  // Appends the text up to token `end`.
  void take_in(const Request& request, std::int64_t end);

  SuffixDecoding config_;
  DrafterNeeds needs_;
  SuffixCache cache_;
  std::map<std::int64_t, std::int64_t> known_;  // tokens of a request's text in the cache
};

}  // namespace trtspec
