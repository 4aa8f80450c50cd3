// TreeGrowth: the draft trees of a batch while a rollout grows them, a pass for each depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <trtspec/tree_levels.hpp>
#include <vector>

namespace trtspec {

// When a rollout ends before its last depth; by default it does not.
struct StopRule {
  // Of the deepest node that is wanted.
  std::int64_t max_depth = std::numeric_limits<std::int64_t>::max();
  // Tokens a second that the time of a pass could bring otherwise; 0: time is not weighed.
  double pace = 0.0;
  // ln of the chance of a node whose parent is right, in the cells of TreeView::cells; none: what
  // the draft gives it.
  std::vector<float> gains = {};
  std::int32_t num_levels = 1;  // of that table
  // The least probability of a node behind its parent, by the draft; others are none.
  double p_min = 0.0;
};

// Where the rollout of a request begins: the position of its root, and its cache's blocks, none of
// which a request of padding has (-1). gap: tokens before it of which no rows are held, so that its
// own is row position - gap of the cache.
struct RolloutRoot {
  std::int64_t position;
  std::span<const std::int32_t> blocks;
  std::int64_t gap = 0;
};

// The rows of one pass, `width` of each request, in their order.
struct BeamRows {
  std::int64_t width;
  std::int64_t depth;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> slots;         // where their K/V go; -1 for padding
  std::vector<std::int64_t> masks;         // of mask_words each
  std::vector<std::int64_t> rows_above;    // of their parents among all rows last fed
  std::vector<std::int32_t> starts;        // the first row of each request, and the end
  std::vector<std::int32_t> context_lens;  // of each request
};

// Rows lie behind the accepted ones: row j of a request's rollout at cache offset j behind its
// root. A score is the sum of the gains along the path; see TreeRollout in
// trtspec/speculative/tree_rollout.py for the rule.
class TreeGrowth {
 public:
  // `levels` outlives it.
  TreeGrowth(const Levels& levels, std::span<const RolloutRoot> roots,
             std::int64_t tokens_per_block, std::int64_t mask_words, StopRule rule = {});

  // The best children of the roots, then of the rows of `next`, `count` of each row, best first,
  // and their log probabilities, at most 0; what a level has no place for is left out.
  void record(std::span<const std::int64_t> ids, std::span<const float> gains, std::int64_t count);
  // Whether a pass is left that could add a node that is wanted.
  bool can_go_on() const;
  // Rows of that pass, over all requests.
  std::int64_t next_rows() const;
  // Whether that pass brings more than its seconds do otherwise. It brings a token of a request at
  // most, and none where the path behind which it drafts is wrong: so many are expected as these
  // paths have chances, of each request the best one.
  bool pays(double seconds) const;
  // Rows of the next pass, which `record` then is told of.
  BeamRows next();
  // The tree of each request; all have equally many nodes, where the score of some may be -inf.
  std::vector<DraftNodes> trees() const;

 private:
  // The tree of one request while it grows.
  struct Growth {
    std::int64_t context;  // rows in the cache, the root's included
    std::int64_t gap;      // see RolloutRoot
    std::span<const std::int32_t> blocks;
    DraftNodes pool;
    std::vector<float> chances;            // of the pool's paths, in logarithms
    std::int64_t pooled = 0;               // candidates before those of the newest depth
    std::vector<std::int64_t> fed = {-1};  // pool indices of the rows last fed; -1: the root
    std::vector<std::int64_t> ancestors;   // the masks of these
    std::vector<std::int64_t> beam;        // of the newest candidates those to be fed

    // Of the beam, the best chance; -inf where nothing is to be fed.
    float best_chance() const;
  };

  // What a node of the newest depth with this gain adds to the chance of its path.
  float worth(float gain) const;
  std::int64_t slot(const Growth& growth, std::int64_t position) const;

  const Levels& levels_;
  std::vector<Growth> growths_;
  std::int64_t tokens_per_block_;
  std::int64_t mask_words_;
  StopRule rule_;
  std::int64_t depth_ = 0;
  std::int64_t rows_fed_ = 0;  // of each request, its root's pass not counted
};

}  // namespace trtspec
