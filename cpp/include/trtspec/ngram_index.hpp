// NgramIndex: where each n-gram of one text last occurred (prompt lookup).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
  // An n-gram is its last n - 1 tokens and the token before them: a trie of the text read
  // backwards, its edges in one hash table. Keys are compared whole, so that a collision of hashes
  // finds nothing.
  struct Entry {
    std::int64_t token = 0;     // the n-gram's first
    std::int64_t next = -1;     // index of the token after its last occurrence; -1: an empty entry
    std::uint32_t shorter = 0;  // number of the (n - 1)-gram that ends it
    std::uint32_t ngram = 0;    // its own number, from 1 on
  };
  static constexpr std::uint32_t kNoNgram = 0;

  // Where the entry is, or would be.
  std::size_t place(std::uint32_t shorter, std::int64_t token) const;
  // Grows the table so that `entries` more fit.
  void make_room(std::int64_t entries);

  std::int32_t min_ngram_;
  std::int32_t max_ngram_;
  std::vector<std::int64_t> text_;
  std::vector<Entry> table_;  // open addressing; a power of two
  std::int64_t num_entries_ = 0;
};

}  // namespace trtspec
