// TokenTree: the draft tokens of one request, as a value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <trtspec/tree_view.hpp>
#include <vector>

namespace trtspec {

// Draft tokens with their parents and scores, held as a value; see TreeView.
class TokenTree {
 public:
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

  TreeView view() const { return {tokens_, parents_, scores_}; }
  operator TreeView() const { return view(); }

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
