// SuffixTree: every window of stored token sequences with its count, and drafts that continue a
// context as those sequences did (suffix decoding, arXiv:2411.04975).
#pragma once

#include <trtspec/draft_batch.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trtspec {

using TokenId = std::int32_t;

// How far and where a draft may go. For a context of which the last m tokens match, at most
// k = min(max_tokens, int(factor * m + offset + 1e-6)) tokens are drafted, none of a probability
// below min_prob. factor must be 0 or more.
struct SuffixOptions {
  std::int64_t max_tokens = 0;
  double factor = 1.0;
  double offset = 0.0;
  double min_prob = 0.1;
  bool tree = false;  // the k likeliest nodes, else one path of at most k
};

struct SuffixDraft {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> parents;  // index of the parent token, -1 for the first ones
  std::vector<double> probs;          // of the path down to each token
  double score = 0.0;                 // the sum of probs: how many tokens to expect accepted
  std::int32_t match_len = 0;         // m of the context the draft follows

  // Its best nodes, within the cut, are the next request's of `drafts`. A node's score is the ln of
  // its probability times how far a match of this length is to be believed, m / (m + 1).
  void append_to(DraftBatch& drafts, const DraftCut& cut) const;
};

// A trie, stored with unary paths compressed, that holds for every sequence and every start s the
// window sequence[s : s + max_depth]. The count of a node is the number of windows through it, that
// is, how often its string occurs. Children are in order of falling count; a child whose count has
// changed becomes the first of its new count.
//
// Appending a token costs a few loads for every suffix of the sequence that occurs elsewhere too,
// up to max_depth of them; the other suffixes cost nothing. Memory is at most two nodes of 36 bytes
// a token (and their entries in a hash table, for nodes of many children) beside the text.
class SuffixTree {
 public:
  static constexpr std::int32_t kMaxDepth = 1024;

  // max_depth: longest window, 1 to kMaxDepth; throws std::invalid_argument for another.
  explicit SuffixTree(std::int32_t max_depth);
  ~SuffixTree();
  SuffixTree(SuffixTree&&) noexcept;
  SuffixTree& operator=(SuffixTree&&) noexcept;

  // A new empty sequence, open for appending; its number. Numbers of removed ones come again.
  std::int32_t add_sequence();
  // Throws std::invalid_argument for a negative token (nothing is appended then).
  void append(std::int32_t sequence, std::span<const TokenId> tokens);
  // A closed sequence takes less memory; appending opens it again, which costs a look-up of its
  // last max_depth suffixes.
  void close(std::int32_t sequence);
  // Takes all windows of the sequence out of the counts.
  void remove(std::int32_t sequence);
  std::span<const TokenId> text(std::int32_t sequence) const;

  // How often the string occurs; all tokens for the empty one, 0 for one longer than max_depth.
  std::int64_t count(std::span<const TokenId> string) const;

  // The draft of the highest score over all m < length of the context, which is cut to its last
  // max_depth tokens; the longest m among equals. If the context ends with the whole of `sequence`,
  // or with its last max_depth tokens, naming it saves finding the matches; -1 if it does not.
  SuffixDraft speculate(std::span<const TokenId> context, const SuffixOptions& options,
                        std::int32_t sequence = -1) const;

  std::int64_t num_tokens() const;  // of the sequences not removed
  std::int64_t num_nodes() const;
  std::size_t memory_bytes() const;
  // Lets go of the text of removed sequences to which nodes still point; happens by itself when it
  // exceeds that of the others.
  void compact();
  // Throws std::logic_error if an invariant does not hold. Walks the whole tree; for tests.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trtspec
