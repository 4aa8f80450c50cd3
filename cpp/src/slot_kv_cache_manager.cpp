#include "trtspec/slot_kv_cache_manager.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace trtspec {

namespace {

[[noreturn]] void refuse(std::int64_t request, const std::string& what) {
  throw std::logic_error("slot KV cache: request " + std::to_string(request) + " " + what);
}

}  // namespace

SlotKVCacheManager::SlotKVCacheManager(std::int64_t num_slots, std::int64_t length)
    : num_slots_(num_slots), length_(length) {
  if (num_slots < 1 || length < 1) {
    throw std::invalid_argument("a slot KV cache of " + std::to_string(num_slots) + " slots of " +
                                std::to_string(length) + " rows; both must be at least 1");
  }
  for (std::int64_t slot = 0; slot < num_slots; ++slot) {
    free_.insert(static_cast<std::int32_t>(slot));
  }
}

void SlotKVCacheManager::begin(std::int64_t request, std::span<const std::int64_t>,
                               std::int64_t num_cached, std::int64_t) {
  if (num_cached != 0 || !sequences_.try_emplace(request).second) {
    refuse(request, "begins twice, or on " + std::to_string(num_cached) + " cached rows");
  }
}

void SlotKVCacheManager::begin_behind(std::int64_t request, std::span<const std::int64_t> tokens,
                                      std::int64_t end, std::int64_t) {
  begin(request, tokens, 0);
  of(request).absent = end;
}

std::span<const std::int32_t> SlotKVCacheManager::block_table(std::int64_t request) const {
  const Sequence& sequence = of(request);
  return {&sequence.slot, sequence.slot < 0 ? std::size_t{0} : std::size_t{1}};
}

std::vector<std::pair<std::int64_t, std::int64_t>> SlotKVCacheManager::committed_lengths() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const auto& [request, sequence] : sequences_) {
    lengths.emplace_back(request, sequence.committed);
  }
  return lengths;
}

std::int64_t SlotKVCacheManager::slot(std::int64_t request, std::int64_t position) const {
  const Sequence& sequence = of(request);
  if (position < 0 || position >= sequence.reserved) {
    refuse(request, "has not reserved position " + std::to_string(position));
  }
  return sequence.slot * length_ + position;
}

std::int64_t SlotKVCacheManager::room(std::int64_t request) const {
  return of(request).slot >= 0 || !free_.empty() ? length_ : 0;
}

bool SlotKVCacheManager::reserve(std::int64_t request, std::int64_t num_tokens) {
  Sequence& sequence = of(request);
  if (num_tokens > room(request)) return false;
  if (sequence.slot < 0 && num_tokens > 0) {
    sequence.slot = free_.extract(free_.begin()).value();
  }
  sequence.reserved = std::max(sequence.reserved, num_tokens);
  return true;
}

void SlotKVCacheManager::commit(std::int64_t request, std::span<const std::int64_t> tokens,
                                std::int64_t first, std::int64_t num_committed, bool keep_surplus) {
  Sequence& sequence = of(request);
  const std::int64_t known = first + static_cast<std::int64_t>(tokens.size()) - sequence.absent;
  if (num_committed < sequence.committed || num_committed > std::min(sequence.reserved, known)) {
    refuse(request, "commits " + std::to_string(num_committed) + " rows of " +
                        std::to_string(known) + " tokens; it has " +
                        std::to_string(sequence.committed) + " and reserved " +
                        std::to_string(sequence.reserved));
  }
  sequence.committed = num_committed;
  if (!keep_surplus) sequence.reserved = num_committed;
}

void SlotKVCacheManager::free(std::int64_t request) {
  const std::int32_t slot = of(request).slot;
  sequences_.erase(request);
  if (slot >= 0) free_.insert(slot);
}

void SlotKVCacheManager::check_invariants() const {
  std::set<std::int32_t> all = free_;
  for (const auto& [request, sequence] : sequences_) {
    const std::int64_t limit = sequence.slot < 0 ? 0 : length_;
    if (sequence.committed > sequence.reserved || sequence.reserved > limit) {
      refuse(request, "holds more rows than it may");
    }
    if (sequence.slot >= 0 && !all.insert(sequence.slot).second) {
      refuse(request, "has a slot that is free, or another's");
    }
  }
  if (static_cast<std::int64_t>(all.size()) != num_slots_) {
    throw std::logic_error("slot KV cache: a slot is lost");
  }
}

const SlotKVCacheManager::Sequence& SlotKVCacheManager::of(std::int64_t request) const {
  const auto found = sequences_.find(request);
  if (found == sequences_.end()) refuse(request, "has not begun");
  return found->second;
}

SlotKVCacheManager::Sequence& SlotKVCacheManager::of(std::int64_t request) {
  return const_cast<Sequence&>(std::as_const(*this).of(request));
}

}  // namespace trtspec
