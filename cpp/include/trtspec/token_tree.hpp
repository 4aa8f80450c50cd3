// TokenTree: the draft tokens of one request, as a value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace trtspec {

// Draft tokens with their parents; a chain is a tree of width one. Row 0 of a verify step is the
// root (the newest accepted token, not part of the tree); node n is row n + 1. A tree may carry
// scores: of each node, ln of the probability that its drafter gives the path to it. They follow
// the nodes wherever these go, and count for nothing in a comparison.
class TokenTree {
 public:
  static constexpr std::int64_t kBitsPerWord = 64;

  TokenTree() = default;  // no nodes
  // parents[i] is the index of node i's parent, -1 for a child of the root; a parent comes before
  // its children. One score a node, or none. Throws std::invalid_argument if they do not fit.
  TokenTree(std::vector<std::int64_t> tokens, std::vector<std::int32_t> parents,
            std::vector<float> scores = {});

  // Node i is the child of node i - 1.
  static TokenTree chain(std::vector<std::int64_t> tokens);
  // The union by token path: a path that several trees hold appears once. Nodes keep the order in
  // which they first come, so an earlier tree's nodes come first.
  static TokenTree merge(std::span<const TokenTree> trees);

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool empty() const { return tokens_.empty(); }
  const std::vector<std::int64_t>& tokens() const { return tokens_; }
  const std::vector<std::int32_t>& parents() const { return parents_; }
  // One a node; none without scores.
  const std::vector<float>& scores() const { return scores_; }
  bool operator==(const TokenTree& other) const {
    return tokens_ == other.tokens_ && parents_ == other.parents_;
  }

  bool is_chain() const;
  // Of each node; a child of the root has depth 1.
  std::vector<std::int32_t> depths() const;
  // 0 without nodes.
  std::int32_t max_depth() const;
  // For every row (the root first): its first child's row and the next row with the same parent,
  // -1 where there is none; siblings are in the order of their rows.
  struct Links {
    std::vector<std::int32_t> first_child;
    std::vector<std::int32_t> next_sibling;
  };
  Links links() const;

  // Words of 64 bits that one row of the mask needs; at least 1.
  std::int64_t mask_words() const { return size() / kBitsPerWord + 1; }
  // Writes [size() + 1, words]: bit j % 64 of word j / 64 of row r says that row r sees row j. The
  // root sees itself; a node sees the root, its ancestors and itself. Throws std::invalid_argument
  // for fewer than mask_words() words.
  void write_mask(std::int64_t words, std::int64_t* out) const;

  // The tree of the nodes `kept`: rising indices, every parent of a kept node kept too. Throws
  // std::invalid_argument for others.
  TokenTree select(std::span<const std::int32_t> kept) const;
  // Without the nodes deeper than max_depth, and of what is left the first max_nodes.
  TokenTree cut(std::optional<std::int64_t> max_depth, std::optional<std::int64_t> max_nodes) const;
  // Without the nodes that carry one of `tokens`, and their descendants.
  TokenTree without(std::span<const std::int64_t> tokens) const;
  // The max_nodes best nodes by `scores` (one a node, none above its parent's), of equals the
  // earlier ones; they are the scores of the tree returned. Left out are nodes of score -inf or
  // NaN, those deeper than max_depth, and tokens of `unwanted` with all that follows. Throws
  // std::invalid_argument for another number of scores.
  TokenTree best(std::span<const float> scores, std::span<const std::int64_t> unwanted,
                 std::int64_t max_depth, std::int64_t max_nodes) const;
  // The tree with other scores: the sum of `gains` (one a node) along the path to a node.
  TokenTree scored(std::span<const float> gains) const;
  // Of each node, its place in a table of num_depths x num_levels, by rows: its depth (1 is row 0;
  // what is deeper than the table, its last row) and the probability that it has given its parent
  // by the scores (1/2 where there are none), in levels that are finer towards 1:
  // 4 log2(1 - 4 log2 p), rounded down.
  std::vector<std::int32_t> cells(std::int32_t num_depths, std::int32_t num_levels) const;
  // That of a node of a depth with ln of this probability given its parent.
  static std::int32_t cell(std::int32_t depth, float gain, std::int32_t num_depths,
                           std::int32_t num_levels);
  // What became of the nodes once the target emitted `tokens`. Its text goes down the tree as far
  // as nodes carry it; `reached` are the children of the rows on that way, in the order of the way,
  // `taken` says of each whether it is the one that carries the next token (the first of several).
  // Deeper nodes are not known to be right or wrong. With `verified`, only paths that it holds are
  // walked and reported.
  struct Outcomes {
    std::vector<std::int32_t> reached;
    std::vector<bool> taken;
  };
  Outcomes outcomes(std::span<const std::int64_t> tokens,
                    const TokenTree* verified = nullptr) const;
  // Nodes from a child of the root down to `node`, inclusive; none for the root, -1. Throws
  // std::invalid_argument for a node that is not there.
  std::vector<std::int32_t> path(std::int64_t node) const;

 private:
  // The tree of the nodes `kept`, with these scores of this tree's nodes, or none.
  TokenTree select(std::span<const std::int32_t> kept, std::span<const float> scores) const;
  // Throws std::invalid_argument unless there are as many scores as nodes.
  void check_count(std::size_t scores) const;
  // Of each node, whether neither it nor an ancestor carries one of `tokens`.
  std::vector<bool> spared(std::span<const std::int64_t> tokens) const;

  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> parents_;
  std::vector<float> scores_;
};

}  // namespace trtspec
