#include "trtspec/suffix_cache.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace trtspec {

namespace {
[[noreturn]] void refuse(std::int64_t request, const char* why) {
  throw std::invalid_argument("suffix cache: request " + std::to_string(request) + " " + why);
}
}  // namespace

SuffixCache::SuffixCache(std::int32_t max_depth, std::int64_t max_requests, std::int64_t max_tokens)
    : max_depth_(max_depth),
      max_requests_(max_requests),
      max_tokens_(max_tokens),
      global_(max_depth) {
  if (max_requests < -1) throw std::invalid_argument("suffix cache: max_requests is below -1");
  if (max_tokens < 0) throw std::invalid_argument("suffix cache: max_tokens is negative");
}

SuffixCache::Active& SuffixCache::active(std::int64_t request) {
  const auto found = active_.find(request);
  if (found == active_.end()) refuse(request, "is not active");
  return found->second;
}

void SuffixCache::start(std::int64_t request) {
  if (is_active(request)) refuse(request, "is already active");
  Active made{SuffixTree(max_depth_), 0};
  made.text = made.local.add_sequence();
  active_.emplace(request, std::move(made));
  if (max_requests_ == 0 || entries_.count(request) != 0) return;
  entries_[request] = {global_.add_sequence(), num_arrivals_};
  arrivals_[num_arrivals_++] = request;
  while (max_requests_ > 0 && num_cached() > max_requests_ && evict_oldest_but(request)) {
  }
}

void SuffixCache::append_prompt(std::int64_t request, std::span<const TokenId> tokens) {
  Active& own = active(request);
  if (own.response_tokens != 0) refuse(request, "has a response, its prompt is complete");
  own.local.append(own.text, tokens);
}

void SuffixCache::append_response(std::int64_t request, std::span<const TokenId> tokens) {
  Active& own = active(request);
  own.local.append(own.text, tokens);
  const std::int64_t begin = own.response_tokens;
  own.response_tokens += std::int64_t(tokens.size());
  const auto entry = entries_.find(request);
  if (entry == entries_.end()) return;
  const std::int32_t sequence = entry->second.sequence;
  const std::int64_t known = std::int64_t(global_.text(sequence).size());
  if (known >= own.response_tokens) return;
  global_.append(sequence, tokens.subspan(std::size_t(std::max<std::int64_t>(known - begin, 0))));
  while (global_.num_tokens() > max_tokens_ && evict_oldest_but(request)) {
  }
}

SuffixDraft SuffixCache::speculate(std::int64_t request, const SuffixOptions& options) const {
  const auto found = active_.find(request);
  if (found == active_.end()) refuse(request, "is not active");
  const Active& own = found->second;
  const std::span<const TokenId> context = own.local.text(own.text);
  SuffixDraft local = own.local.speculate(context, options, own.text);
  if (entries_.empty()) return local;
  const auto entry = entries_.find(request);
  // An entry that is still behind a response that is being repeated does not end the context.
  const bool ends =
      entry != entries_.end() &&
      std::int64_t(global_.text(entry->second.sequence).size()) == own.response_tokens;
  SuffixDraft global = global_.speculate(context, options, ends ? entry->second.sequence : -1);
  return local.score >= global.score ? local : global;
}

void SuffixCache::stop(std::int64_t request) {
  if (active_.erase(request) == 0) return;
  const auto entry = entries_.find(request);
  if (entry == entries_.end()) return;
  if (global_.text(entry->second.sequence).empty()) {
    evict(request);
  } else {
    global_.close(entry->second.sequence);
  }
}

bool SuffixCache::evict(std::int64_t request) {
  const auto entry = entries_.find(request);
  if (entry == entries_.end()) return false;
  global_.remove(entry->second.sequence);
  arrivals_.erase(entry->second.arrival);
  entries_.erase(entry);
  return true;
}

bool SuffixCache::evict_oldest_but(std::int64_t request) {
  for (const auto& [arrival, oldest] : arrivals_) {
    if (oldest != request) return evict(std::int64_t(oldest));
  }
  return false;
}

std::size_t SuffixCache::memory_bytes() const {
  std::size_t bytes = sizeof(SuffixCache) + global_.memory_bytes();
  for (const auto& [request, own] : active_) bytes += sizeof(own) + own.local.memory_bytes();
  // A node of each of the two maps, by what libraries make of them.
  return bytes + entries_.size() * (sizeof(Entry) + 96);
}

}  // namespace trtspec
