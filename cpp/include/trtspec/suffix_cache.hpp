// SuffixCache: the suffix trees of a server, one for each active request and one for all responses.
#pragma once

#include <trtspec/suffix_tree.hpp>

#include <cstdint>
#include <map>
#include <unordered_map>

namespace trtspec {

// A request has a *local* tree of its prompt and response while it is active, and an *entry* in the
// *global* tree: its response alone, which stays after the request. Entries go in the order of
// their arrival when there are too many.
class SuffixCache {
 public:
  // max_requests: entries kept; -1 for no limit, 0 for no global tree. max_tokens: tokens of all
  // entries; the newest may exceed it alone. Throws std::invalid_argument for a depth that
  // SuffixTree refuses and for other negative numbers.
  SuffixCache(std::int32_t max_depth, std::int64_t max_requests, std::int64_t max_tokens);

  // Makes a request active, with nothing known of its text. One that was stopped before its end
  // goes on with its entry, if it is still there. Throws std::invalid_argument for an active one.
  void start(std::int64_t request);
  bool is_active(std::int64_t request) const { return active_.count(request) != 0; }
  // The next tokens of the prompt, or of the response once the prompt is complete. A request that
  // was started again repeats its response from the beginning: what the entry holds already is
  // not counted twice. Throws std::invalid_argument for a request that is not active, a negative
  // token, or a prompt behind a response.
  void append_prompt(std::int64_t request, std::span<const TokenId> tokens);
  void append_response(std::int64_t request, std::span<const TokenId> tokens);
  // The draft that goes on from the request's text: the local tree's unless the global one's has a
  // higher score.
  SuffixDraft speculate(std::int64_t request, const SuffixOptions& options) const;
  // Drops the local tree and keeps the entry, unless it is empty; requests that are not active are
  // ignored.
  void stop(std::int64_t request);
  // Takes an entry out of the global tree; false if there is none.
  bool evict(std::int64_t request);

  std::int64_t num_active() const { return std::int64_t(active_.size()); }
  std::int64_t num_cached() const { return std::int64_t(entries_.size()); }
  std::int64_t num_cached_tokens() const { return global_.num_tokens(); }
  std::size_t memory_bytes() const;
  const SuffixTree& global_tree() const { return global_; }

 private:
  struct Active {
    SuffixTree local;
    std::int32_t text;
    std::int64_t response_tokens = 0;
  };
  struct Entry {
    std::int32_t sequence;
    std::int64_t arrival;
  };

  Active& active(std::int64_t request);
  bool evict_oldest_but(std::int64_t request);

  std::int32_t max_depth_;
  std::int64_t max_requests_;
  std::int64_t max_tokens_;
  SuffixTree global_;
  std::unordered_map<std::int64_t, Active> active_;
  std::unordered_map<std::int64_t, Entry> entries_;
  std::map<std::int64_t, std::int64_t> arrivals_;  // arrival -> request
  std::int64_t num_arrivals_ = 0;
};

}  // namespace trtspec
