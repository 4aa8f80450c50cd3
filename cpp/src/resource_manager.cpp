#include "trtspec/resource_manager.hpp"

#include <algorithm>
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
    follows_.push_back(draft.from_tokens);
    caches_.push_back(std::move(draft.cache));
  }
  for (const auto& cache : caches_) largest_block_ = std::max(largest_block_, cache->block_size());
}

std::int64_t ResourceManager::begin(const Sequence& sequence) {
  // Drafts learn from a target's states too, so that theirs are rows of its adapter.
  const std::int64_t adapter = sequence.adapter;
  const std::int64_t num_cached = caches_.front()->match(sequence.tokens, adapter);
  caches_.front()->begin(sequence.id, sequence.tokens, num_cached, adapter);
  for (std::size_t i = 1; i < caches_.size(); ++i) {
    KVCache& cache = *caches_[i];
    if (!follows_[i]) {
      cache.begin_behind(sequence.id, sequence.tokens, num_cached, adapter);
      continue;
    }
    // As much of the target's prefix as it has, and where it keeps states, as a snapshot reaches.
    const auto prefix = std::span(sequence.tokens).first(static_cast<std::size_t>(num_cached) + 1);
    const std::int64_t own = num_cached == 0 ? 0 : cache.match(prefix, adapter);
    cache.begin(sequence.id, sequence.tokens, own, adapter);
    if (cache.window() > 0 && cache.room(sequence.id) <= num_cached) {
      // It may be smaller than a text, and have no room to catch up.
      cache.free(sequence.id);
      cache.begin_behind(sequence.id, sequence.tokens, num_cached, adapter);
    }
  }
  return num_cached;
}

bool ResourceManager::reserve(const Sequence& sequence, std::int64_t target_tokens,
                              std::span<const std::int64_t> draft_tokens) {
  if (!draft_tokens.empty()) check_count("draft_tokens", draft_tokens.size(), num_drafts());
  // The drafts are asked first what they could give, rather than rolling back after a refusal: a
  // rollback could not bring back the cached blocks evicted for it.
  for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
    if (draft_tokens[i] > draft_room(sequence, i)) return false;
  }
  if (!caches_.front()->reserve(sequence.id, target_tokens)) return false;
  for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
    if (!caches_[1 + i]->reserve(sequence.id, draft_tokens[i] - draft_absent(sequence, i))) {
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
  const bool keep_surplus = sequence.in_flight.launches > 0;
  caches_.front()->commit(sequence.id, sequence.tokens, 0, target_committed, keep_surplus);
  for (std::size_t i = 0; i < draft_committed.size(); ++i) {
    const std::int64_t rows = draft_committed[i] - draft_absent(sequence, i);
    caches_[1 + i]->commit(sequence.id, sequence.tokens, 0, rows, keep_surplus);
  }
}

void ResourceManager::free(const Sequence& sequence) {
  for (const auto& cache : caches_) cache->free(sequence.id);
}

std::int64_t ResourceManager::room(const Sequence& sequence) const {
  std::int64_t room = target_room(sequence);
  for (std::size_t i = 0; i < num_drafts(); ++i) room = std::min(room, draft_room(sequence, i));
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
        own.begin(), own.end(), lengths.begin(), lengths.end(), [&](const auto& a, const auto& b) {
          return a.first == b.first && a.second + draft(i).absent(a.first) <= b.second;
        });
    if (!agree) {
      throw std::logic_error(
          "the caches hold different requests, or a draft is ahead of the target");
    }
  }
}

}  // namespace trtspec
