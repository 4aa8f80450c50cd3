// What a KVCacheManager keeps of states: which slot is whose, and which snapshots are found.
#pragma once
#include <trtspec/kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv_reuse.hpp"

namespace trtspec::kv_reuse {

constexpr std::int32_t kNoSlot = -1;

// Slots of states, then those of snapshots. A snapshot is free, held by the request whose calls make
// it, or published with the block that its prefix ends with: then it is found, until the block is
// evicted, or until it is the one that was used longest ago and another is made. While a request
// begins on it, it stays.
class StateSlots {
 public:
  // Throws std::invalid_argument for sizes that cannot be.
  StateSlots(const StateSizes& sizes, std::int64_t num_blocks, std::int64_t block_size)
      : first_snapshot_(std::int32_t(sizes.num_states)),
        keeps_states_(sizes.num_states > 0),
        idle_(sizes.num_snapshots) {
    if (sizes.num_states < 0 || sizes.num_snapshots < 0 ||
        (sizes.num_snapshots > 0 && (sizes.blocks_apart < 1 || !keeps_states_))) {
      throw std::invalid_argument("a cache of " + std::to_string(sizes.num_states) +
                                  " states and " + std::to_string(sizes.num_snapshots) +
                                  " snapshots " + std::to_string(sizes.blocks_apart) +
                                  " blocks apart cannot be");
    }
    if (sizes.num_snapshots > 0) {
      apart_ = sizes.blocks_apart * block_size;
      of_block_.assign(std::size_t(num_blocks), kNoSlot);
    }
    block_of_.assign(std::size_t(sizes.num_snapshots), kNoBlock);
    users_.assign(std::size_t(sizes.num_snapshots), 0);
    for (std::int64_t i = sizes.num_states; i-- > 0;) states_.push_back(std::int32_t(i));
    for (std::int64_t i = sizes.num_snapshots; i-- > 0;) {
      snapshots_.push_back(first_snapshot_ + std::int32_t(i));
    }
  }

  bool keeps_states() const { return keeps_states_; }
  bool has_free() const { return !states_.empty(); }
  std::int32_t take() {
    const std::int32_t state = states_.back();
    states_.pop_back();
    return state;
  }

  // The next multiple of what lies between snapshots.
  std::int64_t next_border(std::int64_t rows) const {
    return apart_ == 0 ? std::numeric_limits<std::int64_t>::max() : (rows / apart_ + 1) * apart_;
  }
  // One that is free, or was used longest ago; kNoSlot: all are held.
  std::int32_t take_snapshot() {
    if (snapshots_.empty() && idle_.size() > 0) forget(block_of_[std::size_t(idle_.oldest())]);
    if (snapshots_.empty()) return kNoSlot;
    const std::int32_t slot = snapshots_.back();
    snapshots_.pop_back();
    return slot;
  }
  void give_back(std::int32_t slot) {
    if (slot == kNoSlot) return;
    (slot < first_snapshot_ ? states_ : snapshots_).push_back(slot);
  }

  // Of the prefix that ends with a block.
  std::int32_t snapshot(std::int32_t block) const {
    return of_block_.empty() ? kNoSlot : of_block_[std::size_t(block)];
  }
  // The one that is held; if the block has one already, it is free again.
  void publish(std::int32_t block, std::int32_t slot) {
    if (snapshot(block) != kNoSlot) return give_back(slot);
    of_block_[std::size_t(block)] = slot;
    block_of_[std::size_t(slot - first_snapshot_)] = block;
    idle_.append(slot - first_snapshot_);
  }
  // A request begins on it, and has done so; kNoSlot is none.
  void use(std::int32_t slot) {
    if (slot != kNoSlot && users_[std::size_t(slot - first_snapshot_)]++ == 0) {
      idle_.remove(slot - first_snapshot_);
    }
  }
  void used(std::int32_t slot) {
    if (slot != kNoSlot && --users_[std::size_t(slot - first_snapshot_)] == 0) {
      idle_.append(slot - first_snapshot_);
    }
  }
  // The block is evicted; nobody begins on it.
  void forget(std::int32_t block) {
    const std::int32_t slot = snapshot(block);
    if (slot == kNoSlot) return;
    of_block_[std::size_t(block)] = block_of_[std::size_t(slot - first_snapshot_)] = kNoSlot;
    idle_.remove(slot - first_snapshot_);
    give_back(slot);
  }

  // `held`: by requests, states and snapshots.
  void check(std::vector<std::int32_t> held) const {
    held.insert(held.end(), states_.begin(), states_.end());
    held.insert(held.end(), snapshots_.begin(), snapshots_.end());
    for (std::size_t i = 0; i < block_of_.size(); ++i) {
      const std::int32_t block = block_of_[i], slot = first_snapshot_ + std::int32_t(i);
      const bool is_published = block != kNoBlock;
      if (idle_.contains(std::int32_t(i)) != (is_published && users_[i] == 0) ||
          (is_published && snapshot(block) != slot)) {
        throw std::logic_error("KV cache: a snapshot is not that of its block");
      }
      if (is_published) held.push_back(slot);
    }
    std::sort(held.begin(), held.end());
    if (std::adjacent_find(held.begin(), held.end()) != held.end() ||
        held.size() != std::size_t(first_snapshot_) + block_of_.size()) {
      throw std::logic_error("KV cache: a slot of a state is lost, or somebody's twice");
    }
  }

 private:
  std::int32_t first_snapshot_;
  bool keeps_states_;
  std::int64_t apart_ = 0;               // rows between snapshots; 0: there are none
  std::vector<std::int32_t> states_;     // free ones, a stack
  std::vector<std::int32_t> snapshots_;  // likewise
  OldestFirst idle_;  // published ones that nobody begins on, the first snapshot being 0
  std::vector<std::int32_t> of_block_;  // the snapshot of each block
  std::vector<std::int32_t> block_of_;  // and the block of each snapshot, the first one being 0
  std::vector<std::int32_t> users_;     // of each, requests that begin on it
};

}  // namespace trtspec::kv_reuse
