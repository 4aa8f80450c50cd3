// ResourceManager: the KV caches of the target and the draft, moved together or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <trtspec/kv_cache.hpp>
#include <trtspec/runtime/request.hpp>

namespace trtspec {

// The only one that moves the two KVCaches; without a draft cache all draft lengths are 0 and
// ignored. At step boundaries the draft's committed length is at most the target's. Broken
// conditions throw std::logic_error.
class ResourceManager {
 public:
  // draft_from_tokens: rows that the draft lacks can be made of tokens alone, at any time, and its
  // cache has room for them.
  explicit ResourceManager(std::unique_ptr<KVCache> target,
                           std::unique_ptr<KVCache> draft = nullptr,
                           bool draft_from_tokens = false);

  bool has_draft() const { return draft_ != nullptr; }
  const KVCache& target() const { return *target_; }
  const KVCache& draft() const;

  // Starts a request on the prefix that the target holds, and a draft which could not catch up (it
  // would be left with rows nobody wrote); returns its length, committed in both. Another draft
  // begins on what it holds of it.
  std::int64_t begin(const Request& request);
  // Room for that many rows in all, in both caches; false and nothing changed otherwise. A length
  // that is already covered costs nothing, so draft_tokens = 0 asks for no more.
  bool reserve(const Request& request, std::int64_t target_tokens, std::int64_t draft_tokens);
  // Rows now valid in each cache, of request.tokens (emitted tokens already appended). Surplus
  // blocks of both go back.
  void commit(const Request& request, std::int64_t target_committed, std::int64_t draft_committed);
  // Returns all blocks of a request.
  void free(const Request& request);

  // Rows of the blocks that all requests share which a running one will soon ask for, if so much of
  // its prompt is not fed yet: those, and a block to go on.
  std::int64_t pledge(std::int64_t num_tokens) const {
    return target_->is_pooled() ? num_tokens + largest_block_ : 0;
  }
  // Most rows that the request could hold now: in both caches, in the target's.
  std::int64_t room(const Request& request) const;
  std::int64_t target_room(const Request& request) const { return target_->room(request.id); }
  std::int64_t target_committed(const Request& request) const {
    return target_->committed(request.id);
  }
  // 0 without a draft cache.
  std::int64_t draft_committed(const Request& request) const {
    return draft_ ? draft_->committed(request.id) : 0;
  }
  // Blocks in order of position; valid until the next change of the request.
  std::span<const std::int32_t> target_block_table(const Request& request) const {
    return target_->block_table(request.id);
  }
  std::span<const std::int32_t> draft_block_table(const Request& request) const {
    return draft().block_table(request.id);
  }
  // Share of the blocks in use, of the fuller cache; those cached for reuse count as free.
  double usage() const;
  // Throws std::logic_error unless the books of both caches balance; for tests and debugging.
  void check_invariants() const;

 private:
  std::unique_ptr<KVCache> target_;
  std::unique_ptr<KVCache> draft_;
  bool draft_from_tokens_;
  std::int64_t reuse_step_;
  std::int64_t largest_block_;
};

}  // namespace trtspec
