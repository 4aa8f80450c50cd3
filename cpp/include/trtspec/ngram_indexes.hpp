// NgramIndexes: prompt lookup in the texts of all requests that run.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <trtspec/draft_batch.hpp>
#include <trtspec/ngram_index.hpp>

namespace trtspec {

// An NgramIndex of each request, from its first draft on.
class NgramIndexes {
 public:
  // Throws std::invalid_argument unless 1 <= min_ngram <= max_ngram.
  NgramIndexes(std::int32_t min_ngram, std::int32_t max_ngram);

  // Tokens taken in of a request's text.
  std::int64_t known(std::int64_t request) const;
  // Takes in the next tokens of a request's text. What goes on from its end, at most `count` tokens
  // up to the first of the `ends`, is the next request's chain in `drafts`.
  void draft(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t count,
             std::span<const std::int64_t> ends, DraftBatch& drafts);
  // Unknown requests are ignored.
  void release(std::int64_t request) { indexes_.erase(request); }

 private:
  std::int32_t min_ngram_;
  std::int32_t max_ngram_;
  std::map<std::int64_t, NgramIndex> indexes_;
};

}  // namespace trtspec
