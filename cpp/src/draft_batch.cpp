#include "trtspec/draft_batch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace trtspec {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

void check(const TreeView& tree, bool needs_scores) {
  const auto size = static_cast<std::size_t>(tree.size());
  if (tree.parents.size() != size) {
    refuse("a token tree needs one parent a token, got " + std::to_string(size) + " tokens and " +
           std::to_string(tree.parents.size()) + " parents");
  }
  if (tree.scores.size() != size && (needs_scores || !tree.scores.empty())) {
    refuse("a tree of " + std::to_string(size) + " nodes needs as many scores, got " +
           std::to_string(tree.scores.size()));
  }
  if (tree.sources.size() != size && !tree.sources.empty()) {
    refuse("a tree of " + std::to_string(size) + " nodes needs as many sources, got " +
           std::to_string(tree.sources.size()));
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (tree.parents[i] < -1 || tree.parents[i] >= static_cast<std::int32_t>(i)) {
      refuse("node " + std::to_string(i) + " of a token tree has parent " +
             std::to_string(tree.parents[i]) +
             "; it must be -1 (the root) or the index of an earlier node, at most " +
             std::to_string(static_cast<std::int64_t>(i) - 1));
    }
  }
}

// Of the nodes given, the `count` best by score, in their order.
std::vector<std::int32_t> best_of(std::vector<std::int32_t> nodes, std::span<const float> scores,
                                  std::int64_t count) {
  if (std::ssize(nodes) <= count) return nodes;
  std::stable_sort(nodes.begin(), nodes.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  nodes.resize(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

// A path of a union is its parent's node and its own token.
struct Edge {
  std::int32_t parent;
  std::int64_t token;
  bool operator==(const Edge&) const = default;
};

struct EdgeHash {
  std::size_t operator()(const Edge& edge) const {
    std::uint64_t bits = std::uint64_t(edge.token);
    bits += 0x9e3779b97f4a7c15u * std::uint64_t(edge.parent + 2);
    bits = (bits ^ (bits >> 32)) * 0xd6e8feb86659fd93u;
    return std::size_t(bits ^ (bits >> 32));
  }
};

}  // namespace

TreeView DraftBatch::operator[](std::size_t request) const {
  const std::size_t first = starts_[request], count = starts_[request + 1] - first;
  return {std::span(tokens_).subspan(first, count), std::span(parents_).subspan(first, count),
          std::span(scores_).subspan(first, count), std::span(sources_).subspan(first, count)};
}

void DraftBatch::append(TreeView tree) {
  check(tree, false);
  tokens_.insert(tokens_.end(), tree.tokens.begin(), tree.tokens.end());
  parents_.insert(parents_.end(), tree.parents.begin(), tree.parents.end());
  if (tree.scores.empty()) {
    for (const std::int32_t depth : tree.depths()) {
      scores_.push_back(-std::numbers::ln2_v<float> * static_cast<float>(depth));
    }
  } else {
    scores_.insert(scores_.end(), tree.scores.begin(), tree.scores.end());
  }
  sources_.insert(sources_.end(), tree.sources.begin(), tree.sources.end());
  sources_.resize(tokens_.size());
  starts_.push_back(tokens_.size());
}

void DraftBatch::append_best(TreeView tree, const DraftCut& cut) {
  check(tree, true);
  const std::vector<std::int32_t> depths = tree.depths();
  std::vector<bool> may(depths.size());
  std::vector<std::int32_t> nodes;
  for (std::size_t i = 0; i < may.size(); ++i) {
    const std::int32_t parent = tree.parents[i];
    may[i] = depths[i] <= cut.max_depth && std::isfinite(tree.scores[i]) &&
             (parent < 0 || may[static_cast<std::size_t>(parent)]) &&
             std::ranges::find(cut.ends, tree.tokens[i]) == cut.ends.end();
    if (may[i]) nodes.push_back(static_cast<std::int32_t>(i));
  }
  append_kept(tree, best_of(std::move(nodes), tree.scores, cut.max_nodes));
}

void DraftBatch::append_kept(TreeView tree, std::span<const std::int32_t> kept) {
  std::vector<std::int32_t> mapped(static_cast<std::size_t>(tree.size()));
  for (std::int32_t count = 0; const std::int32_t node : kept) {
    const auto at = static_cast<std::size_t>(node);
    const std::int32_t parent = tree.parents[at];
    mapped[at] = count++;
    tokens_.push_back(tree.tokens[at]);
    parents_.push_back(parent < 0 ? -1 : mapped[static_cast<std::size_t>(parent)]);
    scores_.push_back(tree.scores[at]);
    sources_.push_back(tree.sources.empty() ? std::uint8_t{0} : tree.sources[at]);
  }
  starts_.push_back(tokens_.size());
}

DraftBatch DraftBatch::pick(std::span<const std::int64_t> places) const {
  DraftBatch picked;
  for (const std::int64_t place : places) {
    if (place < -1 || place >= static_cast<std::int64_t>(size())) {
      refuse("drafts of " + std::to_string(size()) + " requests have no place " +
             std::to_string(place));
    }
    picked.append(place < 0 ? TreeView() : (*this)[static_cast<std::size_t>(place)]);
  }
  return picked;
}

DraftBatch DraftBatch::best(std::span<const std::int64_t> counts) const {
  check_count(counts.size(), "counts");
  DraftBatch best;
  for (std::size_t i = 0; i < size(); ++i) {
    const TreeView tree = (*this)[i];
    best.append_best(tree, {{}, tree.size(), counts[i]});
  }
  return best;
}

DraftBatch DraftBatch::likeliest(std::int64_t count) const {
  std::vector<std::int32_t> all(tokens_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  const std::vector<std::int32_t> kept = best_of(std::move(all), scores_, count);
  std::vector<std::int64_t> counts(size(), 0);
  for (std::size_t request = 0; const std::int32_t node : kept) {
    while (static_cast<std::size_t>(node) >= starts_[request + 1]) ++request;
    ++counts[request];
  }
  return best(counts);
}

DraftBatch DraftBatch::merge(std::span<const DraftBatch* const> batches,
                             std::span<const std::uint8_t> sources) {
  if (sources.size() != batches.size()) {
    refuse("a union of " + std::to_string(batches.size()) + " batches needs as many sources, got " +
           std::to_string(sources.size()));
  }
  if (batches.empty()) return DraftBatch();
  DraftBatch merged;
  std::unordered_map<Edge, std::int32_t, EdgeHash> node_at;
  std::vector<std::int32_t> mapped;  // node of the tree at hand -> node of the union
  for (std::size_t request = 0; request < batches.front()->size(); ++request) {
    node_at.clear();
    const std::size_t first = merged.tokens_.size();
    for (std::size_t member = 0; member < batches.size(); ++member) {
      const DraftBatch* const batch = batches[member];
      batch->check_count(batches.front()->size(), "requests of another batch");
      const TreeView tree = (*batch)[request];
      mapped.clear();
      for (std::size_t i = 0; i < tree.tokens.size(); ++i) {
        const std::int32_t parent = tree.parents[i];
        const Edge edge{parent < 0 ? -1 : mapped[static_cast<std::size_t>(parent)], tree.tokens[i]};
        const auto next = static_cast<std::int32_t>(merged.tokens_.size() - first);
        const auto [found, is_new] = node_at.try_emplace(edge, next);
        if (is_new) {
          merged.tokens_.push_back(edge.token);
          merged.parents_.push_back(edge.parent);
          merged.scores_.push_back(tree.scores[i]);
          merged.sources_.push_back(sources[member]);
        } else {
          float& score = merged.scores_[first + static_cast<std::size_t>(found->second)];
          score = std::max(score, tree.scores[i]);
        }
        mapped.push_back(found->second);
      }
    }
    merged.starts_.push_back(merged.tokens_.size());
  }
  return merged;
}

DraftBatch DraftBatch::attributed(const DraftBatch& proposed) const {
  proposed.check_count(size(), "requests of another batch");
  DraftBatch made = *this;
  std::unordered_map<Edge, std::int32_t, EdgeHash> node_at;
  constexpr std::int32_t kNone = -2;  // as a node of `proposed`; its children are none either
  std::vector<std::int32_t> same;
  for (std::size_t request = 0; request < size(); ++request) {
    const TreeView from = proposed[request], tree = (*this)[request];
    node_at.clear();
    for (std::size_t i = 0; i < from.tokens.size(); ++i) {
      node_at.try_emplace({from.parents[i], from.tokens[i]}, std::int32_t(i));
    }
    same.clear();
    for (std::size_t i = 0; i < tree.tokens.size(); ++i) {
      const std::int32_t parent = tree.parents[i];
      const Edge edge{parent < 0 ? -1 : same[static_cast<std::size_t>(parent)], tree.tokens[i]};
      const auto found = node_at.find(edge);
      same.push_back(found == node_at.end() ? kNone : found->second);
      made.sources_[starts_[request] + i] =
          found == node_at.end() ? TreeView::kNoSource
                                 : from.sources[static_cast<std::size_t>(found->second)];
    }
  }
  return made;
}

DraftBatch DraftBatch::calibrated(std::span<const float> gains, std::int32_t num_levels,
                                  std::span<const double> exponents) const {
  check_count(exponents.size(), "exponents");
  const auto num_depths = static_cast<std::int32_t>(std::ssize(gains) / num_levels);
  DraftBatch made = *this;
  for (std::size_t request = 0; request < size(); ++request) {
    const std::size_t first = starts_[request];
    const std::vector<std::int32_t> cells = (*this)[request].cells(num_depths, num_levels);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::int32_t parent = parents_[first + i];
      const float above =
          parent < 0 ? 0.0F : made.scores_[first + static_cast<std::size_t>(parent)];
      made.scores_[first + i] =
          gains[static_cast<std::size_t>(cells[i])] * static_cast<float>(exponents[request]) +
          above;
    }
  }
  return made;
}

void DraftBatch::check_count(std::size_t count, const char* what) const {
  if (count != size()) {
    refuse("drafts of " + std::to_string(size()) + " requests, but " + std::to_string(count) + " " +
           what);
  }
}

}  // namespace trtspec
