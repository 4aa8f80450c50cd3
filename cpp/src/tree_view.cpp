#include "trtspec/tree_view.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace trtspec {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

}  // namespace

bool TreeView::operator==(const TreeView& other) const {
  return std::ranges::equal(tokens, other.tokens) && std::ranges::equal(parents, other.parents);
}

std::vector<std::int32_t> TreeView::depths() const {
  std::vector<std::int32_t> depths(parents.size());
  for (std::size_t i = 0; i < parents.size(); ++i) {
    depths[i] = parents[i] < 0 ? 1 : depths[std::size_t(parents[i])] + 1;
  }
  return depths;
}

std::int32_t TreeView::max_depth() const {
  const std::vector<std::int32_t> all = depths();
  return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
}

void TreeView::write_mask(std::int64_t words, std::int64_t* out) const {
  if (words < mask_words()) {
    refuse("a tree of " + std::to_string(size()) + " nodes needs " + std::to_string(mask_words()) +
           " mask words a row, got " + std::to_string(words));
  }
  const auto set = [](std::int64_t* row, std::int64_t bit) {
    row[bit / kBitsPerWord] |= std::int64_t(std::uint64_t(1) << (bit % kBitsPerWord));
  };
  std::fill_n(out, words, 0);
  set(out, 0);
  for (std::int64_t row = 1; row <= size(); ++row) {
    const std::int64_t parent = parents[std::size_t(row - 1)] + 1;
    std::copy_n(out + parent * words, words, out + row * words);
    set(out + row * words, row);
  }
}

std::vector<std::int32_t> TreeView::cells(std::int32_t num_depths, std::int32_t num_levels) const {
  std::vector<std::int32_t> cells = depths();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    float gain = -std::numbers::ln2_v<float>;
    if (!scores.empty()) {
      const std::int32_t parent = parents[i];
      gain = scores[i] - (parent < 0 ? 0.0f : scores[std::size_t(parent)]);
    }
    cells[i] = cell(cells[i], gain, num_depths, num_levels);
  }
  return cells;
}

std::int32_t TreeView::cell(std::int32_t depth, float gain, std::int32_t num_depths,
                            std::int32_t num_levels) {
  const float bits = std::max(-gain * std::numbers::log2e_v<float>, 0.0f);
  const float level = 4.0f * std::log2(1.0f + 4.0f * bits);
  // The last level also has what is no number or excluded.
  const std::int32_t column = level < float(num_levels) ? std::int32_t(level) : num_levels - 1;
  return (std::min(depth, num_depths) - 1) * num_levels + column;
}

TreeView::Outcomes TreeView::outcomes(std::span<const std::int64_t> text,
                                      const TreeView* verified) const {
  Outcomes outcomes;
  std::int32_t at = -1, other = -1;  // where the text is: here, and in `verified`
  const auto child = [](const TreeView& tree, std::int32_t parent, std::int64_t token) {
    for (std::int32_t i = parent + 1; i < tree.size(); ++i) {
      if (tree.parents[std::size_t(i)] == parent && tree.tokens[std::size_t(i)] == token) return i;
    }
    return -1;
  };
  for (const std::int64_t token : text) {
    std::int32_t next = -1;
    for (std::int32_t i = at + 1; i < size(); ++i) {
      if (parents[std::size_t(i)] != at) continue;
      if (verified != nullptr && child(*verified, other, tokens[std::size_t(i)]) < 0) continue;
      const bool is_taken = next < 0 && tokens[std::size_t(i)] == token;
      outcomes.reached.push_back(i);
      outcomes.taken.push_back(is_taken);
      if (is_taken) next = i;
    }
    if (next < 0) break;
    at = next;
    if (verified != nullptr) other = child(*verified, other, token);
  }
  return outcomes;
}

std::vector<TreeView::OfSource> TreeView::by_source(std::span<const std::int64_t> rows) const {
  std::vector<OfSource> found;
  const auto of = [&](std::size_t node) -> OfSource* {
    const std::size_t source = sources.empty() ? 0 : sources[node];
    if (source == kNoSource) return nullptr;
    if (found.size() <= source) found.resize(source + 1);
    return &found[source];
  };
  for (std::size_t node = 0; node < tokens.size(); ++node) {
    if (OfSource* own = of(node)) ++own->drafted;
  }
  for (const std::int64_t row : rows) {
    if (row == 0) continue;
    if (OfSource* own = of(std::size_t(row - 1))) ++own->accepted;
  }
  return found;
}

std::vector<std::int32_t> TreeView::path(std::int64_t node) const {
  if (node < -1 || node >= size()) {
    refuse("a tree of " + std::to_string(size()) + " nodes has no node " + std::to_string(node));
  }
  std::vector<std::int32_t> path;
  for (auto at = std::int32_t(node); at >= 0; at = parents[std::size_t(at)]) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace trtspec
