#include "trtspec/build_tree.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <trtspec/tree_levels.hpp>
#include <vector>

namespace trtspec {
namespace {

using Places = std::vector<std::int64_t>;

// Rounding may lift a certain child's gain above 0, and it would then outrank its parent.
float at_most_zero(float gain) {
  if (gain < 0.0F) return gain;
  return gain >= 0.0F ? 0.0F : -std::numeric_limits<float>::infinity();
}

std::span<const float> scores_at(const float* scores, std::int64_t count) {
  return {scores, static_cast<std::size_t>(count)};
}

// The pool's scores of request b.
float* append(const TreePool& pool, const TreeChildren& children, std::int64_t b) {
  const std::int64_t count = children.count();
  float* const scores = pool.scores + b * pool.size;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t from = b * count + i, place = children.begin + i;
    const std::int64_t row = b * children.lanes + i / children.branching;
    const std::int32_t parent = children.above == nullptr ? -1 : children.above[row];
    const float gain = at_most_zero(children.gains[from]);
    pool.tokens[b * pool.size + place] = children.tokens[from];
    pool.parents[b * pool.size + place] = parent;
    scores[place] = parent < 0 ? gain : scores[parent] + gain;
  }
  return scores;
}

// Where a candidate is among `kept`, which rise and hold it; -1 stays -1.
std::int32_t node_of(const Places& kept, std::int64_t candidate) {
  if (candidate < 0) return -1;
  const auto at = std::lower_bound(kept.begin(), kept.end(), candidate);
  return static_cast<std::int32_t>(at - kept.begin());
}

// The best of the scores, in their order.
Places best_in_order(std::span<const float> scores, std::int64_t count) {
  Places kept = best_scores(scores, count);
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace

void expand_tree(const TreePool& pool, const TreeChildren& children, const TreeBeam& beam) {
  for (std::int64_t b = 0; b < pool.requests; ++b) {
    const float* const scores = append(pool, children, b) + children.begin;
    const Places fed = beam.chosen != nullptr
                           ? Places(beam.chosen, beam.chosen + beam.width)
                           : best_scores(scores_at(scores, children.count()), beam.width);
    for (std::int64_t i = 0; i < beam.width; ++i) {
      const std::int64_t candidate = children.begin + fed[static_cast<std::size_t>(i)];
      const std::int64_t lane = fed[static_cast<std::size_t>(i)] / children.branching;
      const std::int64_t to = b * beam.width + i;
      beam.tokens[to] = pool.tokens[b * pool.size + candidate];
      beam.index[to] = static_cast<std::int32_t>(candidate);
      beam.lanes[to] = lane;
      const std::int64_t bit = beam.first_bit + i;
      for (std::int64_t w = 0; w < beam.words; ++w) {
        const std::int64_t row = b * children.lanes + lane;
        const std::int64_t seen =
            beam.seen_above == nullptr ? 0 : beam.seen_above[row * beam.words + w];
        const auto own =
            static_cast<std::int64_t>(w == bit / 64 ? std::uint64_t{1} << bit % 64 : 0);
        beam.seen[to * beam.words + w] = seen | own;
      }
    }
  }
}

void keep_best(const TreePool& pool, const TreeChildren& children, const KeptTree& tree) {
  for (std::int64_t b = 0; b < pool.requests; ++b) {
    const float* const scores = append(pool, children, b);
    const Places kept = tree.chosen != nullptr
                            ? Places(tree.chosen, tree.chosen + tree.nodes)
                            : best_in_order(scores_at(scores, pool.size), tree.nodes);
    std::int64_t to = b * tree.nodes;
    for (const std::int64_t candidate : kept) {
      tree.tokens[to] = pool.tokens[b * pool.size + candidate];
      tree.parents[to] = node_of(kept, pool.parents[b * pool.size + candidate]);
      tree.scores[to++] = scores[candidate];
    }
  }
}

void marginal_trees(const MarginalTrees& params) {
  std::vector<float> found, scores;  // of a depth's candidates; of the nodes of all depths
  std::vector<std::int64_t> tokens, parents;
  for (std::int64_t b = 0; b < params.requests; ++b) {
    scores.clear(), tokens.clear(), parents.clear();
    std::int64_t above = -1;  // the first node of the depth above; first of all the root
    for (std::int64_t depth = 0; depth < params.depths; ++depth) {
      const std::int64_t given = (b * params.depths + depth) * params.count;
      const std::int32_t begin = params.starts[depth], end = params.starts[depth + 1];
      found.clear();
      for (std::int32_t i = begin; i < end; ++i) {
        const float gain = at_most_zero(params.gains[given + params.ranks[i]]);
        const std::int64_t parent = above + params.lanes[i];
        found.push_back(parent < 0 ? gain : scores[static_cast<std::size_t>(parent)] + gain);
      }
      Places nodes(found.size());
      std::iota(nodes.begin(), nodes.end(), std::int64_t{0});
      if (!params.keep_all) nodes = best_scores(found, params.nodes);
      const auto first = static_cast<std::int64_t>(scores.size());
      for (const std::int64_t node : nodes) {
        scores.push_back(found[static_cast<std::size_t>(node)]);
        tokens.push_back(params.tokens[given + params.ranks[begin + node]]);
        parents.push_back(above + params.lanes[begin + node]);
      }
      above = first;
    }
    Places kept(scores.size());
    std::iota(kept.begin(), kept.end(), std::int64_t{0});
    if (!params.keep_all) kept = best_in_order(scores, params.nodes);
    std::int64_t to = b * params.nodes;
    for (const std::int64_t node : kept) {
      params.out_tokens[to] = tokens[static_cast<std::size_t>(node)];
      params.out_parents[to] = node_of(kept, parents[static_cast<std::size_t>(node)]);
      params.out_scores[to++] = scores[static_cast<std::size_t>(node)];
    }
  }
}

}  // namespace trtspec
