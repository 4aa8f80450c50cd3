#include <trtspec/runtime/resource_manager.hpp>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace trtspec {

ResourceManager::ResourceManager(std::unique_ptr<KVCache> target, std::unique_ptr<KVCache> draft,
                                 bool draft_from_tokens)
    : target_(std::move(target)),
      draft_(std::move(draft)),
      draft_from_tokens_(draft_from_tokens) {
  reuse_step_ = largest_block_ = target_->block_size();
  if (draft_) {
    if (!draft_from_tokens_) reuse_step_ = std::lcm(reuse_step_, draft_->block_size());
    largest_block_ = std::max(largest_block_, draft_->block_size());
  }
}

const KVCache& ResourceManager::draft() const {
  if (!draft_) throw std::logic_error("there is no draft cache");
  return *draft_;
}

std::int64_t ResourceManager::begin(const Request& request) {
  std::int64_t num_cached = target_->match(request.tokens), held = 0;
  if (draft_ && num_cached > 0) {
    held = std::min(num_cached, draft_->match(request.tokens));
    if (!draft_from_tokens_) num_cached = held -= held % reuse_step_;
    held -= held % draft_->block_size();
  }
  target_->begin(request.id, request.tokens, num_cached);
  if (draft_) draft_->begin(request.id, request.tokens, held);
  return num_cached;
}

bool ResourceManager::reserve(const Request& request, std::int64_t target_tokens,
                              std::int64_t draft_tokens) {
  if (!draft_ || draft_tokens == 0) return target_->reserve(request.id, target_tokens);
  // The draft is asked first what it could give, rather than rolling the target back after the
  // draft's refusal: a rollback could not bring back the cached blocks evicted for it.
  if (draft_tokens > draft_->room(request.id)) return false;
  if (!target_->reserve(request.id, target_tokens)) return false;
  if (!draft_->reserve(request.id, draft_tokens)) {
    throw std::logic_error("the draft cache refused what it had room for");
  }
  return true;
}

void ResourceManager::commit(const Request& request, std::int64_t target_committed,
                             std::int64_t draft_committed) {
  if (draft_ && draft_committed > target_committed) {
    throw std::logic_error("the draft cannot be ahead of the target");
  }
  target_->commit(request.id, request.tokens, 0, target_committed);
  if (draft_) draft_->commit(request.id, request.tokens, 0, draft_committed);
}

void ResourceManager::free(const Request& request) {
  target_->free(request.id);
  if (draft_) draft_->free(request.id);
}

std::int64_t ResourceManager::room(const Request& request) const {
  const std::int64_t room = target_->room(request.id);
  return draft_ ? std::min(room, draft_->room(request.id)) : room;
}

double ResourceManager::usage() const {
  const auto usage_of = [](const KVCache& cache) {
    return 1.0 - static_cast<double>(cache.num_free_blocks()) /
                     static_cast<double>(cache.num_blocks());
  };
  return draft_ ? std::max(usage_of(*target_), usage_of(*draft_)) : usage_of(*target_);
}

void ResourceManager::check_invariants() const {
  target_->check_invariants();
  if (draft_) draft_->check_invariants();
}

}  // namespace trtspec
