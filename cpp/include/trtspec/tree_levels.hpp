// Which nodes a rollout feeds at every depth and keeps in the end: dynamic and static trees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace trtspec {

// The fixed shape of a draft tree: (k, D, N), of which N counts the root; with choices the paths of
// a static tree, by rising depth, each a rank among its siblings for every depth.
struct TreeShape {
  std::int64_t topk;
  std::int64_t num_steps;
  std::int64_t num_draft_tokens;
  std::vector<std::vector<std::int64_t>> choices = {};

  std::int64_t num_nodes() const { return num_draft_tokens - 1; }
  // The tree of a rollout of one step: the best children of the root, as far as there is room.
  TreeShape first_step() const { return {topk, 1, std::min(topk + 1, num_draft_tokens)}; }
};

// Nodes of one request; parents are indices of the nodes, -1 = child of the root.
struct DraftNodes {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> parents;
  std::vector<float> scores;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  // Those of `kept`, which rises and is closed under parents.
  DraftNodes cut(std::span<const std::int64_t> kept) const;
};

// Indices of the largest scores, at most `count`, descending; ties go to the lowest index.
std::vector<std::int64_t> best_scores(std::span<const float> scores, std::int64_t count);

// The growth of a tree, depth by depth: a dynamic one feeds the k best of each depth and keeps the
// N - 1 best of all, a static one the nodes of its choices, whatever they score. A depth's
// candidates stand in the order of (row fed, rank); the pool holds those of all depths in turn.
class Levels {
 public:
  explicit Levels(const TreeShape& shape);

  // Children recorded of every row fed: the first of the root, number d of the rows fed at depth d.
  const std::vector<std::int64_t>& branching() const { return branching_; }
  // Rows fed at depth 1, 2, ... up to the last but one.
  const std::vector<std::int64_t>& widths() const { return widths_; }
  // Which candidates of depth index + 1 are fed.
  std::vector<std::int64_t> beam(std::size_t index, std::span<const float> scores) const;
  // Which candidates of the pool are the tree, rising; the pool may lack the last depths.
  std::vector<std::int64_t> kept(std::span<const float> scores) const;

 private:
  std::int64_t num_nodes_;
  std::vector<std::int64_t> branching_;
  std::vector<std::int64_t> widths_;
  std::vector<std::vector<std::int64_t>> beams_;  // of a static tree
  std::vector<std::int64_t> kept_;
};

// A token tree out of the marginals of its depths, for drafts that guess all depths at once; see
// MarginalTree in trtspec/speculative/marginals.py.
class MarginalTree {
 public:
  explicit MarginalTree(const TreeShape& shape);

  // Tokens of a depth that are to be known, best first.
  std::int64_t count() const { return count_; }
  // ids and gains [D, count]: of every depth the best tokens and their log probabilities.
  DraftNodes grow(std::span<const std::int64_t> ids, std::span<const float> gains) const;

 private:
  bool is_static_;
  std::int64_t num_nodes_;
  std::int64_t count_ = 0;
  // The candidates of all depths; see MarginalTrees.
  std::vector<std::int32_t> starts_ = {0};
  std::vector<std::int32_t> lanes_;
  std::vector<std::int32_t> ranks_;
};

}  // namespace trtspec
