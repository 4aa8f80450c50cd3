// ResourceManager: the KV caches of the target and of drafts, moved together or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <trtspec/kv_cache.hpp>
#include <trtspec/sequence.hpp>
#include <vector>

namespace trtspec {

// The only one that moves the KVCaches of a step: the target's, and those of any number of drafts.
// At step boundaries each draft's committed length is at most the target's. Lengths count tokens of
// the text; a draft's cache has no rows of those that are absent to it (`KVCacheManager`), and what it
// is asked for where rows lie is smaller by `draft_absent`.
//
// A cache of a network with recurrent layers holds states as well (`KVCacheManager`), so that these are
// reserved, committed and freed with its rows.
//
// Lengths of drafts are given in their order, one for each. Broken conditions throw
// std::logic_error.
class ResourceManager {
 public:
  struct Draft {
    std::shared_ptr<KVCache> cache;
    bool from_tokens = false;  // rows that it lacks can be made of tokens alone, at any time
  };

  explicit ResourceManager(std::shared_ptr<KVCache> target, std::vector<Draft> drafts = {});

  std::size_t num_drafts() const { return caches_.size() - 1; }
  // The target's cache (0), then the drafts'.
  const KVCache& cache(std::size_t index) const { return *caches_.at(index); }
  const KVCache& target() const { return *caches_.front(); }
  const KVCache& draft(std::size_t index = 0) const { return cache(1 + index); }

  // Starts a sequence on the prefix that the target holds, and returns its length. No draft shortens
  // it: those that can catch up, by their rows and their room, begin on what they hold of it, and to
  // the others what they lack of it is absent, so that they have the target's length.
  std::int64_t begin(const Sequence& sequence);
  // Room for that many rows in all, in every cache; false and nothing changed otherwise. A length
  // that is already covered costs nothing, so no draft_tokens ask for no more.
  bool reserve(const Sequence& sequence, std::int64_t target_tokens,
               std::span<const std::int64_t> draft_tokens = {});
  // Rows now valid in each cache, of the sequence's tokens (emitted ones already appended). Surplus
  // blocks of all go back, unless launches of the sequence are in flight, which may write there.
  void commit(const Sequence& sequence, std::int64_t target_committed,
              std::span<const std::int64_t> draft_committed);
  // Returns all blocks of a sequence.
  void free(const Sequence& sequence);

  // Rows of the blocks that all sequences share which a running one will soon ask for, if so much
  // of its prompt is not fed yet: those, and a block to go on.
  std::int64_t pledge(std::int64_t num_tokens) const {
    return target().is_pooled() ? num_tokens + largest_block_ : 0;
  }
  // Most rows that the sequence could hold now: in every cache, in the target's.
  std::int64_t room(const Sequence& sequence) const;
  std::int64_t target_room(const Sequence& sequence) const { return target().room(sequence.id); }
  std::int64_t target_committed(const Sequence& sequence) const {
    return target().committed(sequence.id);
  }
  std::int64_t draft_committed(const Sequence& sequence, std::size_t draft = 0) const {
    return this->draft(draft).committed(sequence.id) + draft_absent(sequence, draft);
  }
  // Tokens, all before the first row that the draft is fed, of which its cache has no row.
  std::int64_t draft_absent(const Sequence& sequence, std::size_t draft = 0) const {
    return this->draft(draft).absent(sequence.id);
  }
  // Blocks in order of position; valid until the next change of the sequence.
  std::span<const std::int32_t> target_block_table(const Sequence& sequence) const {
    return target().block_table(sequence.id);
  }
  std::span<const std::int32_t> draft_block_table(const Sequence& sequence,
                                                  std::size_t draft = 0) const {
    return this->draft(draft).block_table(sequence.id);
  }
  // What the target's next call does to the sequence's state; see KVCacheManager::keep.
  Snapshot keep_target(const Sequence& sequence, std::int64_t from, std::int64_t to) {
    return caches_.front()->keep(sequence.id, from, to);
  }
  // The same of a draft's, of its rows.
  Snapshot keep_draft(const Sequence& sequence, std::int64_t from, std::int64_t to,
                      std::size_t draft = 0) {
    return caches_[1 + draft]->keep(sequence.id, from, to);
  }
  // Share of the blocks in use, of the fullest cache; those cached for reuse count as free.
  double usage() const;
  // Throws std::logic_error unless every cache's books balance, and they agree; for tests and
  // debugging.
  void check_invariants() const;

 private:
  std::int64_t draft_room(const Sequence& sequence, std::size_t draft) const {
    return this->draft(draft).room(sequence.id) + draft_absent(sequence, draft);
  }

  std::vector<std::shared_ptr<KVCache>> caches_;  // the target's first
  std::vector<bool> follows_;  // of each cache, whether it catches up with the target's
  std::int64_t largest_block_ = 1;
};

}  // namespace trtspec
