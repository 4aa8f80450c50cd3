#include "trtspec/tree_levels.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <trtspec/build_tree.hpp>

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
  std::map<Path, std::int32_t> places = {{Path(), 0}};
  const auto add = [&](std::int64_t lane, std::int64_t rank) {
    lanes_.push_back(static_cast<std::int32_t>(lane));
    ranks_.push_back(static_cast<std::int32_t>(rank));
    count_ = std::max(count_, rank + 1);
  };
  std::int64_t width = 1;
  for (std::int64_t depth = 1; depth <= shape.num_steps; ++depth) {
    if (is_static_) {
      std::map<Path, std::int32_t> own;
      for (const Path& path : paths_of(shape, depth)) {
        own[path] = static_cast<std::int32_t>(own.size());
        add(places.at(parent_of(path)), path.back());
      }
      places = std::move(own);
    } else {
      // The parents of a depth are sorted, the best first.
      for (std::int64_t lane = 0; lane < width; ++lane) {
        const std::int64_t ranks = std::min(shape.topk, num_nodes_ / (lane + 1));
        for (std::int64_t rank = 0; rank < ranks; ++rank) add(lane, rank);
      }
      width = std::min(std::ssize(lanes_) - starts_.back(), num_nodes_);
    }
    starts_.push_back(static_cast<std::int32_t>(lanes_.size()));
  }
}

DraftNodes MarginalTree::grow(std::span<const std::int64_t> ids,
                              std::span<const float> gains) const {
  const auto nodes = static_cast<std::size_t>(num_nodes_);
  DraftNodes tree{std::vector<std::int64_t>(nodes), {}, std::vector<float>(nodes)};
  std::vector<std::int32_t> parents(nodes);
  marginal_trees({.requests = 1,
                  .depths = std::ssize(starts_) - 1,
                  .count = count_,
                  .tokens = ids.data(),
                  .gains = gains.data(),
                  .starts = starts_.data(),
                  .lanes = lanes_.data(),
                  .ranks = ranks_.data(),
                  .keep_all = is_static_,
                  .nodes = num_nodes_,
                  .out_tokens = tree.tokens.data(),
                  .out_parents = parents.data(),
                  .out_scores = tree.scores.data()});
  tree.parents.assign(parents.begin(), parents.end());
  return tree;
}

}  // namespace trtspec
