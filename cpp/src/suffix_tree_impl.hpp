// SuffixTree::Impl, shared by the files that change, query and check a tree.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "suffix_nodes.hpp"

namespace trtspec {

// One stored text. While it is open, every suffix of it that is shorter than max_depth and ends at
// a node (not in a tail of its own) has a walker: the node is ring[start & mask]. A suffix of a
// suffix occurs at least as often, so the walkers are those of the last `walkers` starts.
struct SuffixSequence {
  suffix::Block<TokenId> tokens;
  suffix::Block<std::int32_t> ring;
  std::int32_t walkers = 0;
  bool alive = true;  // false: removed, but nodes may still read their edges here
  bool open = false;
  bool spare = false;  // not a text: paths copied by compact()

  std::int32_t size() const { return std::int32_t(tokens.size()); }
};

struct SuffixTree::Impl {
  // A place in the trie: `used` tokens of the edge of `node`.
  struct Place {
    std::int32_t node;
    std::int32_t used;
  };

  explicit Impl(std::int32_t depth)
      : max_depth(depth), mask(std::int32_t(std::bit_ceil(std::uint32_t(depth)) - 1)) {}

  SuffixSequence& at(std::int32_t sequence);
  const SuffixSequence& at(std::int32_t sequence) const {
    return const_cast<Impl*>(this)->at(sequence);
  }

  const TokenId* edge(std::int32_t i) const {
    const suffix::Node& node = nodes[i];
    return sequences[std::size_t(node.seq)].tokens.data() + node.pos;
  }
  std::int32_t length(std::int32_t i) const {
    const suffix::Node& node = nodes[i];
    if (node.len != 0 || i == suffix::kRoot) return node.len;
    const std::int32_t size = sequences[std::size_t(node.seq)].size();
    return std::min(node.start + max_depth, size) - node.pos;
  }

  // -- suffix_tree.cpp: changing the tree
  void append(std::int32_t sequence, TokenId token);
  std::int32_t step(std::int32_t sequence, std::int32_t start, std::int32_t node, TokenId token);
  std::int32_t slide(std::int32_t sequence, std::int32_t node, std::int32_t child);
  std::int32_t enter(std::int32_t sequence, std::int32_t child);
  void make_tail(std::int32_t sequence, std::int32_t start, std::int32_t parent, TokenId token);
  void settle(std::int32_t tail);
  void absorb(std::int32_t child, std::int32_t node);
  void open(std::int32_t sequence);
  void remove(std::int32_t sequence);
  void remove_window(const SuffixSequence& sequence, std::int32_t start);
  void compact();
  void save_path(std::int32_t node, std::int32_t spare);
  bool borrow(std::int32_t node);

  // -- suffix_query.cpp: reading it
  class Matches;
  bool find(const TokenId* string, std::int32_t size, Place& place) const;
  SuffixDraft speculate(std::span<const TokenId> context, const SuffixOptions& options,
                        std::int32_t sequence) const;
  double path_score(Place place, std::int64_t k, double min_prob) const;
  void path(Place place, std::int64_t k, double min_prob, SuffixDraft& draft) const;
  double grow_tree(Place place, std::int64_t k, double min_prob, SuffixDraft& draft) const;

  // -- suffix_check.cpp
  void check() const;

  std::int32_t max_depth;
  std::int32_t mask;  // of the rings
  suffix::Nodes nodes;
  std::vector<SuffixSequence> sequences;
  std::vector<std::int32_t> unused;  // numbers of sequences
  std::int64_t live_tokens = 0;
  std::int64_t dead_tokens = 0;  // of removed sequences whose text is still kept
};

}  // namespace trtspec
