#include "trtspec/tree_levels.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace trtspec {

namespace {

using Path = std::vector<std::int64_t>;

Path parent_of(const Path& path) { return {path.begin(), path.end() - 1}; }

// The paths of one depth, in their order.
std::vector<Path> paths_of(const TreeShape& shape, std::int64_t depth) {
  std::vector<Path> paths;
  for (const Path& path : shape.choices) {
    if (static_cast<std::int64_t>(path.size()) == depth) paths.push_back(path);
  }
  return paths;
}

}  // namespace

DraftNodes DraftNodes::cut(std::span<const std::int64_t> kept) const {
  std::vector<std::int64_t> place(tokens.size(), -1);
  DraftNodes nodes;
  for (const std::int64_t index : kept) {
    const auto i = static_cast<std::size_t>(index);
    place[i] = nodes.size();
    const std::int64_t parent = parents[i];
    nodes.tokens.push_back(tokens[i]);
    nodes.parents.push_back(parent < 0 ? -1 : place[static_cast<std::size_t>(parent)]);
    nodes.scores.push_back(scores[i]);
  }
  return nodes;
}

std::vector<std::int64_t> best_scores(std::span<const float> scores, std::int64_t count) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [scores](std::int64_t a, std::int64_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
  return order;
}

Levels::Levels(const TreeShape& shape) : num_nodes_(shape.num_nodes()) {
  if (shape.choices.empty()) {
    branching_.assign(static_cast<std::size_t>(shape.num_steps), shape.topk);
    widths_.assign(static_cast<std::size_t>(shape.num_steps - 1), shape.topk);
    return;
  }
  std::map<Path, std::int64_t> lanes = {{Path(), 0}};  // of the rows last fed
  std::int64_t pooled = 0;
  for (std::int64_t depth = 1; depth <= shape.num_steps; ++depth) {
    const std::vector<Path> paths = paths_of(shape, depth);
    std::int64_t branching = 0;
    for (const Path& path : paths) branching = std::max(branching, path.back() + 1);
    branching_.push_back(branching);
    std::map<Path, std::int64_t> fed;
    std::vector<std::int64_t> beam;
    for (const Path& path : paths) {
      const std::int64_t place = lanes.at(parent_of(path)) * branching + path.back();
      kept_.push_back(pooled + place);
      const bool has_child =
          std::any_of(shape.choices.begin(), shape.choices.end(),
                      [&](const Path& other) { return parent_of(other) == path; });
      if (!has_child) continue;
      fed[path] = static_cast<std::int64_t>(beam.size());
      beam.push_back(place);
    }
    pooled += static_cast<std::int64_t>(lanes.size()) * branching;
    if (!beam.empty()) {
      widths_.push_back(static_cast<std::int64_t>(beam.size()));
      beams_.push_back(std::move(beam));
    }
    lanes = std::move(fed);
  }
}

std::vector<std::int64_t> Levels::beam(std::size_t index, std::span<const float> scores) const {
  return beams_.empty() ? best_scores(scores, widths_[index]) : beams_[index];
}

std::vector<std::int64_t> Levels::kept(std::span<const float> scores) const {
  if (!kept_.empty()) {
    return {kept_.begin(), std::lower_bound(kept_.begin(), kept_.end(), std::ssize(scores))};
  }
  std::vector<std::int64_t> best = best_scores(scores, num_nodes_);
  std::sort(best.begin(), best.end());
  return best;
}

MarginalTree::MarginalTree(const TreeShape& shape)
    : is_static_(!shape.choices.empty()), num_nodes_(shape.num_nodes()) {
  std::map<Path, std::int64_t> places = {{Path(), 0}};
  std::int64_t width = 1;
  for (std::int64_t depth = 1; depth <= shape.num_steps; ++depth) {
    std::vector<Pair> pairs;
    if (is_static_) {
      std::map<Path, std::int64_t> own;
      for (const Path& path : paths_of(shape, depth)) {
        own[path] = static_cast<std::int64_t>(pairs.size());
        pairs.push_back({places.at(parent_of(path)), path.back()});
      }
      places = std::move(own);
    } else {
      // The parents of a depth are sorted, the best first.
      for (std::int64_t lane = 0; lane < width; ++lane) {
        const std::int64_t ranks = std::min(shape.topk, num_nodes_ / (lane + 1));
        for (std::int64_t rank = 0; rank < ranks; ++rank) pairs.push_back({lane, rank});
      }
      width = std::min(static_cast<std::int64_t>(pairs.size()), num_nodes_);
    }
    for (const Pair& pair : pairs) count_ = std::max(count_, pair.rank + 1);
    depths_.push_back(std::move(pairs));
  }
}

DraftNodes MarginalTree::grow(std::span<const std::int64_t> ids,
                              std::span<const float> gains) const {
  DraftNodes pool;
  std::vector<float> above = {0.0F};  // the root's score
  std::int64_t first = -1;            // of the depth above, its place among all nodes
  for (std::size_t depth = 0; depth < depths_.size(); ++depth) {
    const std::vector<Pair>& pairs = depths_[depth];
    const std::size_t begin = depth * static_cast<std::size_t>(count_);
    std::vector<float> found;
    for (const Pair& pair : pairs) {
      found.push_back(above[static_cast<std::size_t>(pair.lane)] +
                      gains[begin + static_cast<std::size_t>(pair.rank)]);
    }
    std::vector<std::int64_t> order(pairs.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (!is_static_) order = best_scores(found, num_nodes_);
    const auto next = pool.size();
    std::vector<float> scores;
    for (const std::int64_t index : order) {
      const Pair& pair = pairs[static_cast<std::size_t>(index)];
      pool.tokens.push_back(ids[begin + static_cast<std::size_t>(pair.rank)]);
      pool.parents.push_back(first + pair.lane);
      pool.scores.push_back(found[static_cast<std::size_t>(index)]);
      scores.push_back(pool.scores.back());
    }
    above = std::move(scores);
    first = next;
  }
  if (is_static_) return pool;
  std::vector<std::int64_t> kept = best_scores(pool.scores, num_nodes_);
  std::sort(kept.begin(), kept.end());
  return pool.cut(kept);
}

}  // namespace trtspec
