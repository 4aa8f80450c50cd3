// TreeRollout: every depth a pass over the best nodes of the last one.
#include <ATen/ops/full.h>

#include <trtspec/runtime/rollouts.hpp>
#include <trtspec/token_tree.hpp>
#include <utility>

#include "rollout_parts.hpp"

namespace trtspec {

namespace {

// The tree of one request while it grows.
struct Growth {
  std::int64_t root_position;
  std::vector<std::int64_t> ancestors;  // masks of the rows last fed, `words` each
  DraftNodes pool;
  std::int64_t pooled = 0;  // candidates before those of the newest depth

  std::span<const float> newest_scores() const {
    return std::span(pool.scores).subspan(static_cast<std::size_t>(pooled));
  }
};

// The rows of one depth over all requests.
struct BeamRows {
  std::vector<std::int64_t> tokens, positions, slots, masks;
  std::vector<std::int32_t> starts, contexts;
  std::vector<std::int64_t> feature_rows;  // among the rows last fed
  std::vector<float> scores;
  std::vector<std::int64_t> parents;  // indices of the request's pool
};

}  // namespace

TreeRollout::TreeRollout(std::shared_ptr<DraftNetwork> network, const TreeShape& shape,
                         std::int64_t tokens_per_block)
    : network_(std::move(network)), levels_(shape), tokens_per_block_(tokens_per_block) {}

std::vector<at::Tensor> TreeRollout::run(std::vector<at::Tensor> inputs) {
  const RolloutInputs given = RolloutInputs::of(inputs, network_->num_caches());
  const EngineInputs& engine = given.engine;
  const std::int64_t batch = given.num_requests(), words = engine.rows.tree_mask.size(1);
  const std::vector<std::int64_t>& branching = levels_.branching();

  at::Tensor features;
  if (given.hidden.defined()) features = network_->fuse(given.hidden);
  DraftNetwork::Passed passed =
      network_->draft(engine.input_ids, features, engine.rows, engine.caches);
  features = passed.features.defined() ? passed.features.index_select(0, given.last_rows)
                                       : at::Tensor();
  Candidates found = draft_rows(*network_, passed.ready.index_select(0, given.last_rows),
                                given.sampling, {1, 0, 0}, branching[0]);

  std::vector<Growth> growths;
  const auto* positions = engine.rows.positions.const_data_ptr<std::int64_t>();
  const auto* last_rows = given.last_rows.const_data_ptr<std::int64_t>();
  for (std::int64_t request = 0; request < batch; ++request) {
    Growth& growth = growths.emplace_back();
    growth.root_position = positions[last_rows[request]];
    growth.ancestors.assign(static_cast<std::size_t>(words), 0);
    const auto ids = found.ids_of(request);
    const auto gains = found.gains_of(request);
    growth.pool.tokens.assign(ids.begin(), ids.end());
    growth.pool.scores.assign(gains.begin(), gains.end());
    growth.pool.parents.assign(ids.size(), -1);
  }

  std::int64_t fed = 0, lanes = 1;
  for (std::size_t level = 0; level < levels_.widths().size(); ++level) {
    const std::int64_t width = levels_.widths()[level];
    const auto depth = static_cast<std::int64_t>(level) + 1;
    BeamRows beam;
    beam.starts.push_back(0);
    for (std::int64_t request = 0; request < batch; ++request) {
      Growth& growth = growths[static_cast<std::size_t>(request)];
      // Rollout rows lie behind the accepted rows: row j of the rollout at cache offset j.
      const std::int64_t context = growth.root_position + 1;
      std::vector<std::int64_t> ancestors;
      for (std::int64_t row = 0; const std::int64_t best :
                                 levels_.beam(level, growth.newest_scores())) {
        const std::int64_t lane = best / branching[level], offset = fed + row++;
        const auto node = static_cast<std::size_t>(growth.pooled + best);
        beam.tokens.push_back(growth.pool.tokens[node]);
        beam.scores.push_back(growth.pool.scores[node]);
        beam.parents.push_back(growth.pooled + best);
        beam.positions.push_back(growth.root_position + depth);
        beam.slots.push_back(given.slot(request, context + offset, tokens_per_block_));
        beam.feature_rows.push_back(request * lanes + lane);
        const auto above = growth.ancestors.begin() + lane * words;
        ancestors.insert(ancestors.end(), above, above + words);
        constexpr std::int64_t kBits = TokenTree::kBitsPerWord;
        auto& word = ancestors[ancestors.size() - static_cast<std::size_t>(words) +
                               static_cast<std::size_t>(offset / kBits)];
        word |= static_cast<std::int64_t>(std::uint64_t{1} << (offset % kBits));
      }
      growth.ancestors = std::move(ancestors);
      beam.masks.insert(beam.masks.end(), growth.ancestors.begin(), growth.ancestors.end());
      beam.contexts.push_back(static_cast<std::int32_t>(context));
      beam.starts.push_back(static_cast<std::int32_t>((request + 1) * width));
    }
    const RowPlaces rows{to_tensor(beam.positions), to_tensor(beam.slots),
                         engine.rows.block_tables,  to_tensor(beam.starts),
                         to_tensor(beam.contexts),  at::full({batch}, true, at::kBool),
                         to_tensor(beam.masks).view({batch * width, words})};
    if (features.defined()) features = features.index_select(0, to_tensor(beam.feature_rows));
    passed = network_->draft(to_tensor(beam.tokens), features, rows, engine.caches);
    features = passed.features;
    found = draft_rows(*network_, passed.ready, given.sampling, {width, depth, 0},
                       branching[level + 1]);
    for (std::int64_t request = 0; request < batch; ++request) {
      Growth& growth = growths[static_cast<std::size_t>(request)];
      growth.pooled = growth.pool.size();
      for (std::int64_t row = request * width; row < (request + 1) * width; ++row) {
        const auto ids = found.ids_of(row);
        const auto gains = found.gains_of(row);
        growth.pool.tokens.insert(growth.pool.tokens.end(), ids.begin(), ids.end());
        growth.pool.parents.insert(growth.pool.parents.end(), ids.size(),
                                   beam.parents[static_cast<std::size_t>(row)]);
        for (const float gain : gains) {
          growth.pool.scores.push_back(beam.scores[static_cast<std::size_t>(row)] + gain);
        }
      }
    }
    fed += width;
    lanes = width;
  }
  std::vector<DraftNodes> trees;
  for (const Growth& growth : growths) {
    trees.push_back(growth.pool.cut(levels_.kept(growth.pool.scores)));
  }
  return to_outputs(trees);
}

}  // namespace trtspec
