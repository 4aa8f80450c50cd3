#include "trtspec/resource_manager.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace trtspec {

namespace {

void check_count(const char* name, std::size_t given, std::size_t drafts) {
  if (given == drafts) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(given) +
                              " lengths, but there are " + std::to_string(drafts) +
                              " draft KV caches");
}

}  // namespace

ResourceManager::ResourceManager(std::shared_ptr<KVCache> target, std::vector<Draft> drafts)
    : caches_{std::move(target)}, follows_{false} {
  for (Draft& draft : drafts) {
    // A cache that may be smaller than a text (it has a window) has no room to catch up.
    follows_.push_back(draft.from_tokens && draft.cache->window() == 0);
    caches_.push_back(std::move(draft.cache));
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const std::int64_t size = caches_[i]->block_size();
    if (!follows_[i]) reuse_step_ = std::lcm(reuse_step_, size);
    largest_block_ = std::max(largest_block_, size);
  }
}

std::int64_t ResourceManager::begin(const Sequence& sequence) {
  const auto held = [&](std::size_t i, std::int64_t most) {
    return most == 0 ? 0 : std::min(most, caches_[i]->match(sequence.tokens));
  };
  std::int64_t num_cached = sequence.size();
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (!follows_[i]) num_cached = held(i, num_cached);
  }
  num_cached -= num_cached % reuse_step_;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    std::int64_t own = follows_[i] ? held(i, num_cached) : num_cached;
    own -= own % caches_[i]->block_size();
    caches_[i]->begin(sequence.id, sequence.tokens, own);
  }
  return num_cached;
}

bool ResourceManager::reserve(const Sequence& sequence, std::int64_t target_tokens,
                              std::span<const std::int64_t> draft_tokens) {
  if (!draft_tokens.empty()) check_count("draft_tokens", draft_tokens.size(), num_drafts());
  // The drafts are asked first what they could give, rather than rolling back after a refusal: a
  // rollback could not bring back the cached blocks evicted for it.
  for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
    if (draft_tokens[i] > draft(i).room(sequence.id)) return false;
  }
  if (!caches_.front()->reserve(sequence.id, target_tokens)) return false;
  for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
    if (!caches_[1 + i]->reserve(sequence.id, draft_tokens[i])) {
      throw std::logic_error("a draft cache refused what it had room for");
    }
  }
  return true;
}

void ResourceManager::commit(const Sequence& sequence, std::int64_t target_committed,
                             std::span<const std::int64_t> draft_committed) {
  check_count("draft_committed", draft_committed.size(), num_drafts());
  for (const std::int64_t committed : draft_committed) {
    if (committed > target_committed) {
      throw std::logic_error("a draft cannot be ahead of the target");
    }
  }
  caches_.front()->commit(sequence.id, sequence.tokens, 0, target_committed);
  for (std::size_t i = 0; i < draft_committed.size(); ++i) {
    caches_[1 + i]->commit(sequence.id, sequence.tokens, 0, draft_committed[i]);
  }
}

void ResourceManager::free(const Sequence& sequence) {
  for (const auto& cache : caches_) cache->free(sequence.id);
}

std::int64_t ResourceManager::room(const Sequence& sequence) const {
  std::int64_t room = target_room(sequence);
  for (const auto& cache : caches_) room = std::min(room, cache->room(sequence.id));
  return room;
}

double ResourceManager::usage() const {
  double usage = 0.0;
  for (const auto& cache : caches_) {
    usage = std::max(usage, 1.0 - static_cast<double>(cache->num_free_blocks()) /
                                      static_cast<double>(cache->num_blocks()));
  }
  return usage;
}

void ResourceManager::check_invariants() const {
  for (const auto& cache : caches_) cache->check_invariants();
  const auto lengths = target().committed_lengths();
  for (std::size_t i = 0; i < num_drafts(); ++i) {
    const auto own = draft(i).committed_lengths();
    const bool agree = std::equal(
        own.begin(), own.end(), lengths.begin(), lengths.end(),
        [](const auto& a, const auto& b) { return a.first == b.first && a.second <= b.second; });
    if (!agree) {
      throw std::logic_error("the caches hold different requests, or a draft is ahead of the target");
    }
  }
}

}  // namespace trtspec
