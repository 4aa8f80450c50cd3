// SlotKVCacheManager: a slot of its own for every sequence, in place of blocks.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <trtspec/kv_cache.hpp>

namespace trtspec {

// The contract of KVCacheManager over num_slots slots of `length` rows each.
//
// A slot is one block, as long as a sequence can become: a sequence takes the lowest free one with
// its first row and keeps it to its end, so its rows are contiguous, and running sequences lie
// close together. Nothing is shared: match finds no prefix.
class SlotKVCacheManager final : public KVCache {
 public:
  // Throws std::invalid_argument for sizes below 1.
  SlotKVCacheManager(std::int64_t num_slots, std::int64_t length);

  std::int64_t num_blocks() const override { return num_slots_; }
  std::int64_t block_size() const override { return length_; }
  std::int64_t capacity() const override { return length_; }
  std::int64_t num_free_blocks() const override { return static_cast<std::int64_t>(free_.size()); }
  bool is_pooled() const override { return false; }

  std::int64_t match(std::span<const std::int64_t>, std::int64_t = 0) const override { return 0; }
  // num_cached must be 0.
  void begin(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t num_cached,
             std::int64_t adapter = 0) override;
  // Tokens before `end` are all absent.
  void begin_behind(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t end,
                    std::int64_t adapter = 0) override;
  std::int64_t absent(std::int64_t request) const override { return of(request).absent; }
  std::int64_t committed(std::int64_t request) const override { return of(request).committed; }
  std::vector<std::pair<std::int64_t, std::int64_t>> committed_lengths() const override;
  // The request's slot; empty before its first reservation.
  std::span<const std::int32_t> block_table(std::int64_t request) const override;
  std::int64_t slot(std::int64_t request, std::int64_t position) const override;
  std::int64_t room(std::int64_t request) const override;
  bool reserve(std::int64_t request, std::int64_t num_tokens) override;
  void commit(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t first,
              std::int64_t num_committed, bool keep_surplus = false) override;
  void free(std::int64_t request) override;
  void check_invariants() const override;

 private:
  struct Sequence {
    std::int32_t slot = -1;  // -1: none yet
    std::int64_t reserved = 0;
    std::int64_t committed = 0;
    std::int64_t absent = 0;
  };

  const Sequence& of(std::int64_t request) const;
  Sequence& of(std::int64_t request);

  std::int64_t num_slots_;
  std::int64_t length_;
  std::set<std::int32_t> free_;
  std::map<std::int64_t, Sequence> sequences_;
};

}  // namespace trtspec
