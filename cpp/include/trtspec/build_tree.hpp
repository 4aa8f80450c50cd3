// The draft trees of a batch of requests while a rollout grows them; the contract is in
// trtspec/ops/build_tree.py.
#pragma once

#include <cstdint>

namespace trtspec {

// The candidates of `requests` rollouts, one depth behind the other, [requests, size] each.
struct TreePool {
  std::int64_t* tokens;
  std::int32_t* parents;  // candidate of the pool, -1 = child of the root
  float* scores;          // cumulative, so a child's is at most its parent's
  std::int64_t requests;
  std::int64_t size;
};

// The children of the rows last fed, [requests, lanes, branching]. In the pool they are candidates
// `begin` .. begin + count() - 1.
struct TreeChildren {
  std::int64_t begin;
  std::int64_t lanes;  // rows last fed, of each request
  std::int64_t branching;
  const std::int64_t* tokens;
  const float* gains;         // log probabilities; above 0 they count as 0, NaN as -inf
  const std::int32_t* above;  // [requests, lanes]: the candidate that each row is; null: the root

  constexpr std::int64_t count() const { return lanes * branching; }
};

// The rows that a rollout feeds next, `width` of each request.
struct TreeBeam {
  std::int64_t width;
  const std::int64_t* chosen;  // [width]: among the children; null: the best, the highest first
  std::int64_t* tokens;        // [requests, width]
  std::int32_t* index;         // [requests, width]: candidate of the pool
  std::int64_t* lanes;         // [requests, width]: which of the rows last fed is the parent
  // What each row sees, [requests, width, words]: what its parent saw (seen_above, [requests,
  // lanes, words]; null: nothing), and itself, bit first_bit + its place.
  std::int64_t first_bit;
  std::int64_t words;  // may be 0
  const std::int64_t* seen_above;
  std::int64_t* seen;
};

// A tree of `nodes` candidates of the pool, [requests, nodes] each, in the order of the pool;
// parents point among them.
struct KeptTree {
  std::int64_t nodes;
  const std::int64_t* chosen;  // [nodes], rising and closed under parents; null: the best
  std::int64_t* tokens;
  std::int32_t* parents;
  float* scores;
};

// Put the children into the pool, and choose among them the rows that are fed next, or of the whole
// pool, which they complete, the tree. The lower index is better among equals.
void expand_tree(const TreePool& pool, const TreeChildren& children, const TreeBeam& beam);
void keep_best(const TreePool& pool, const TreeChildren& children, const KeptTree& kept);

// Trees of drafts whose guess for a depth does not depend on the path.
struct MarginalTrees {
  std::int64_t requests;
  std::int64_t depths;
  std::int64_t count;          // tokens of a depth
  const std::int64_t* tokens;  // [requests, depths, count], best first
  const float* gains;          // the same; see TreeChildren

  // The candidates of depth d are number starts[d] .. starts[d + 1] - 1 of `lanes`, places among the
  // nodes of the depth above, and `ranks` of tokens. Of a depth's candidates the `nodes` best are its
  // nodes, the best first; or with keep_all all of them, as they are.
  const std::int32_t* starts;  // [depths + 1]
  const std::int32_t* lanes;
  const std::int32_t* ranks;
  bool keep_all;

  // [requests, nodes] each: of all these the best, or all, depth by depth.
  std::int64_t nodes;
  std::int64_t* out_tokens;
  std::int32_t* out_parents;
  float* out_scores;
};

void marginal_trees(const MarginalTrees& params);

}  // namespace trtspec
