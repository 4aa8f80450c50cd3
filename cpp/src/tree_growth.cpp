#include "trtspec/tree_growth.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <trtspec/tree_view.hpp>
#include <utility>

namespace trtspec {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

}  // namespace

float TreeGrowth::Growth::best_chance() const {
  float best = kNone;
  for (const std::int64_t index : beam) {
    const auto node = static_cast<std::size_t>(pooled + index);
    if (pool.scores[node] > kNone) best = std::max(best, chances[node]);
  }
  return best;
}

TreeGrowth::TreeGrowth(const Levels& levels, std::span<const RolloutRoot> roots,
                       std::int64_t tokens_per_block, std::int64_t mask_words, StopRule rule)
    : levels_(levels),
      tokens_per_block_(tokens_per_block),
      mask_words_(mask_words),
      rule_(std::move(rule)) {
  for (const RolloutRoot& root : roots) {
    Growth& growth = growths_.emplace_back();
    growth.context = root.position - root.gap + 1;
    growth.gap = root.gap;
    growth.blocks = root.blocks;
    growth.ancestors.assign(static_cast<std::size_t>(mask_words), 0);
  }
}

void TreeGrowth::record(std::span<const std::int64_t> ids, std::span<const float> gains,
                        std::int64_t count) {
  const auto level = static_cast<std::size_t>(depth_++);
  const std::int64_t recorded = levels_.branching()[level];
  const auto least = static_cast<float>(std::log(rule_.p_min));
  std::size_t first = 0;
  for (Growth& growth : growths_) {
    DraftNodes& pool = growth.pool;
    growth.pooled = pool.size();
    for (const std::int64_t node : growth.fed) {
      const auto above = static_cast<std::size_t>(node);
      const float score = node < 0 ? 0.0F : pool.scores[above];
      const float chance = node < 0 ? 0.0F : growth.chances[above];
      for (std::int64_t rank = 0; rank < recorded; ++rank) {
        const std::size_t i = first + static_cast<std::size_t>(rank);
        pool.tokens.push_back(ids[i]);
        pool.parents.push_back(node);
        pool.scores.push_back(gains[i] < least ? kNone : score + gains[i]);
        growth.chances.push_back(chance + worth(gains[i]));
      }
      first += static_cast<std::size_t>(count);
    }
    growth.beam.clear();
    if (level < levels_.widths().size()) {
      const std::span<const float> scores = pool.scores;
      growth.beam = levels_.beam(level, scores.subspan(static_cast<std::size_t>(growth.pooled)));
    }
  }
}

float TreeGrowth::worth(float gain) const {
  if (rule_.gains.empty()) return gain;
  const auto depths = static_cast<std::int32_t>(rule_.gains.size()) / rule_.num_levels;
  const auto depth = static_cast<std::int32_t>(depth_);
  const std::int32_t cell = TreeView::cell(depth, gain, depths, rule_.num_levels);
  return rule_.gains[static_cast<std::size_t>(cell)];
}

bool TreeGrowth::can_go_on() const {
  return depth_ < rule_.max_depth &&
         std::any_of(
             growths_.begin(), growths_.end(),
             [](const Growth& growth) { return growth.best_chance() > kNone; });
}

std::int64_t TreeGrowth::next_rows() const {
  return std::ssize(growths_) * std::ssize(growths_.front().beam);
}

bool TreeGrowth::pays(double seconds) const {
  double tokens = 0.0;
  for (const Growth& growth : growths_) {
    tokens += std::exp(static_cast<double>(growth.best_chance()));
  }
  return tokens > rule_.pace * seconds;
}

BeamRows TreeGrowth::next() {
  BeamRows rows{.width = std::ssize(growths_.front().beam),
                .depth = depth_,
                .tokens = {},
                .positions = {},
                .slots = {},
                .masks = {},
                .rows_above = {},
                .starts = {0},
                .context_lens = {}};
  const std::int64_t branching = levels_.branching()[static_cast<std::size_t>(depth_ - 1)];
  std::int64_t first_above = 0;
  for (Growth& growth : growths_) {
    std::vector<std::int64_t> fed;
    const std::size_t first_mask = rows.masks.size();
    for (const std::int64_t index : growth.beam) {
      const std::int64_t lane = index / branching, offset = rows_fed_ + std::ssize(fed);
      const std::int64_t node = growth.pooled + index;
      rows.tokens.push_back(growth.pool.tokens[static_cast<std::size_t>(node)]);
      rows.positions.push_back(growth.context + growth.gap - 1 + depth_);
      rows.slots.push_back(slot(growth, growth.context + offset));
      rows.rows_above.push_back(first_above + lane);
      const auto above = growth.ancestors.begin() + lane * mask_words_;
      rows.masks.insert(rows.masks.end(), above, above + mask_words_);
      constexpr std::int64_t kBits = TreeView::kBitsPerWord;
      rows.masks[rows.masks.size() - static_cast<std::size_t>(mask_words_ - offset / kBits)] |=
          static_cast<std::int64_t>(std::uint64_t{1} << (offset % kBits));
      fed.push_back(node);
    }
    first_above += std::ssize(growth.fed);
    growth.fed = std::move(fed);
    growth.ancestors.assign(rows.masks.begin() + static_cast<std::ptrdiff_t>(first_mask),
                            rows.masks.end());
    rows.starts.push_back(static_cast<std::int32_t>(rows.tokens.size()));
    rows.context_lens.push_back(static_cast<std::int32_t>(growth.context));
  }
  rows_fed_ += rows.width;
  return rows;
}

std::vector<DraftNodes> TreeGrowth::trees() const {
  std::vector<DraftNodes> trees;
  for (const Growth& growth : growths_) {
    trees.push_back(growth.pool.cut(levels_.kept(growth.pool.scores)));
  }
  return trees;
}

std::int64_t TreeGrowth::slot(const Growth& growth, std::int64_t position) const {
  const auto column = static_cast<std::size_t>(position / tokens_per_block_);
  const std::int32_t block = column < growth.blocks.size() ? growth.blocks[column] : -1;
  if (block < 0) {
    if (growth.blocks.front() < 0) return -1;
    throw std::logic_error("a rollout writes behind the blocks of a request");
  }
  return block * tokens_per_block_ + position % tokens_per_block_;
}

}  // namespace trtspec
