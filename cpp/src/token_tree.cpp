#include "trtspec/token_tree.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace trtspec {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

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

TokenTree::TokenTree(std::vector<std::int64_t> tokens, std::vector<std::int32_t> parents,
                     std::vector<float> scores)
    : tokens_(std::move(tokens)), parents_(std::move(parents)), scores_(std::move(scores)) {
  if (tokens_.size() != parents_.size()) {
    refuse("a token tree needs one parent a token, got " + std::to_string(tokens_.size()) +
           " tokens and " + std::to_string(parents_.size()) + " parents");
  }
  if (!scores_.empty()) check_count(scores_.size());
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int32_t parent = parents_[std::size_t(i)];
    if (parent < -1 || parent >= i) {
      refuse("node " + std::to_string(i) + " of a token tree has parent " +
             std::to_string(parent) +
             "; it must be -1 (the root) or the index of an earlier node, at most " +
             std::to_string(i - 1));
    }
  }
}

TokenTree TokenTree::chain(std::vector<std::int64_t> tokens) {
  TokenTree tree;
  tree.parents_.resize(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) tree.parents_[i] = std::int32_t(i) - 1;
  tree.tokens_ = std::move(tokens);
  return tree;
}

TokenTree TokenTree::merge(std::span<const TokenTree> trees) {
  TokenTree merged;
  std::unordered_map<Edge, std::int32_t, EdgeHash> node_at;
  std::vector<std::int32_t> mapped;  // node of the tree at hand -> node of the union
  const bool has_scores = std::ranges::all_of(
      trees, [](const TokenTree& tree) { return tree.empty() || !tree.scores_.empty(); });
  for (const TokenTree& tree : trees) {
    mapped.clear();
    for (std::size_t i = 0; i < tree.tokens_.size(); ++i) {
      const std::int32_t parent = tree.parents_[i];
      const Edge edge{parent < 0 ? -1 : mapped[std::size_t(parent)], tree.tokens_[i]};
      const auto [found, is_new] = node_at.try_emplace(edge, std::int32_t(merged.size()));
      if (is_new) {
        merged.tokens_.push_back(edge.token);
        merged.parents_.push_back(edge.parent);
        if (has_scores) merged.scores_.push_back(tree.scores_[i]);
      } else if (has_scores) {
        float& score = merged.scores_[std::size_t(found->second)];
        score = std::max(score, tree.scores_[i]);
      }
      mapped.push_back(found->second);
    }
  }
  return merged;
}

TokenTree TokenTree::cut(std::optional<std::int64_t> max_depth,
                         std::optional<std::int64_t> max_nodes) const {
  const std::int64_t deepest = max_depth.value_or(size());
  const std::int64_t most = max_nodes.value_or(size());
  if (deepest < 0 || most < 0) {
    const auto shown = [](const std::optional<std::int64_t>& value) {
      return value ? std::to_string(*value) : "None";
    };
    refuse("a tree is cut to 0 or more, got max_depth=" + shown(max_depth) +
           ", max_nodes=" + shown(max_nodes));
  }
  if (deepest >= size() && most >= size()) return *this;
  const std::vector<std::int32_t> depth = view().depths();
  std::vector<std::int32_t> kept;
  for (std::int32_t i = 0; i < size() && std::int64_t(kept.size()) < most; ++i) {
    // A kept node's parent is kept too: it is less deep and comes earlier.
    if (depth[std::size_t(i)] <= deepest) kept.push_back(i);
  }
  return select(kept);
}

TokenTree TokenTree::without(std::span<const std::int64_t> tokens) const {
  const std::vector<bool> keep = spared(tokens);
  std::vector<std::int32_t> kept;
  for (std::int32_t i = 0; i < size(); ++i) {
    if (keep[std::size_t(i)]) kept.push_back(i);
  }
  return select(kept);
}

TokenTree TokenTree::best(std::span<const float> scores, std::span<const std::int64_t> unwanted,
                          std::int64_t max_depth, std::int64_t max_nodes) const {
  check_count(scores.size());
  const std::vector<bool> keep = spared(unwanted);
  const std::vector<std::int32_t> depth = view().depths();
  std::vector<std::int32_t> kept;
  for (std::int32_t i = 0; i < size(); ++i) {
    const auto at = std::size_t(i);
    if (keep[at] && depth[at] <= max_depth && std::isfinite(scores[at])) kept.push_back(i);
  }
  if (std::int64_t(kept.size()) > max_nodes) {
    std::stable_sort(kept.begin(), kept.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[std::size_t(a)] > scores[std::size_t(b)];
    });
    kept.resize(std::size_t(std::max<std::int64_t>(max_nodes, 0)));
    std::sort(kept.begin(), kept.end());
  }
  return select(kept, scores);
}

TokenTree TokenTree::scored(std::span<const float> gains) const {
  check_count(gains.size());
  TokenTree tree = *this;
  tree.scores_.assign(gains.begin(), gains.end());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (parents_[i] >= 0) tree.scores_[i] += tree.scores_[std::size_t(parents_[i])];
  }
  return tree;
}

TokenTree TokenTree::select(std::span<const std::int32_t> kept) const {
  return select(kept, scores_);
}

TokenTree TokenTree::select(std::span<const std::int32_t> kept,
                            std::span<const float> scores) const {
  TokenTree tree;
  std::vector<std::int32_t> mapped(tokens_.size(), -1);  // -1: not kept
  for (std::int32_t last = -1; const std::int32_t node : kept) {
    if (node <= last || node >= size()) {
      refuse("nodes of a tree of " + std::to_string(size()) + " are kept in rising order, got " +
             std::to_string(node) + " behind " + std::to_string(last));
    }
    last = node;
    const std::int32_t parent = parents_[std::size_t(node)];
    if (parent >= 0 && mapped[std::size_t(parent)] < 0) {
      refuse("node " + std::to_string(node) + " of a tree is kept without its parent " +
             std::to_string(parent));
    }
    mapped[std::size_t(node)] = std::int32_t(tree.size());
    tree.tokens_.push_back(tokens_[std::size_t(node)]);
    tree.parents_.push_back(parent < 0 ? -1 : mapped[std::size_t(parent)]);
    if (!scores.empty()) tree.scores_.push_back(scores[std::size_t(node)]);
  }
  return tree;
}

void TokenTree::check_count(std::size_t scores) const {
  if (std::int64_t(scores) != size()) {
    refuse("a tree of " + std::to_string(size()) + " nodes needs as many scores, got " +
           std::to_string(scores));
  }
}

std::vector<bool> TokenTree::spared(std::span<const std::int64_t> tokens) const {
  std::vector<bool> keep(tokens_.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const bool hit = std::find(tokens.begin(), tokens.end(), tokens_[i]) != tokens.end();
    keep[i] = !hit && (parents_[i] < 0 || keep[std::size_t(parents_[i])]);
  }
  return keep;
}

}  // namespace trtspec
