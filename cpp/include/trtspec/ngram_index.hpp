// NgramIndex: where each n-gram of one text last occurred (prompt lookup).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace trtspec {

// An index of all n-grams of one text, for n in [min_ngram, max_ngram]. Appending a token costs one
// entry of a hash table per n, a lookup at most one probe per n.
class NgramIndex {
 public:
  // Throws std::invalid_argument unless 1 <= min_ngram <= max_ngram.
  NgramIndex(std::int32_t min_ngram, std::int32_t max_ngram);

  // Tokens taken in.
  std::int64_t size() const { return static_cast<std::int64_t>(text_.size()); }
  // Appends tokens to the text.
  void extend(std::span<const std::int64_t> tokens);
  // `count` tokens that followed the most recent earlier occurrence of the longest indexed suffix;
  // none without an occurrence. Where the text ends before `count` tokens, the draft is continued
  // from itself, as a text that repeats would go on.
  std::vector<std::int64_t> propose(std::int64_t count) const;

 private:
  std::int32_t min_ngram_;
  std::int32_t max_ngram_;
  std::vector<std::int64_t> text_;
  // Hash of an n-gram -> where it was last followed by a token; the text itself settles collisions.
  std::vector<std::unordered_multimap<std::uint64_t, std::int64_t>> next_;
};

}  // namespace trtspec
