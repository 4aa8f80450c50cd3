// ParallelRollout: all depths in one pass, by rows of a mask token.
#include <stdexcept>
#include <trtspec/runtime/rollouts.hpp>
#include <utility>

#include "rollout_parts.hpp"

namespace trtspec {

namespace {

// Packed rows with those of the masks behind each request's own.
struct MaskedRows {
  std::vector<std::int64_t> ids, positions, slots;
  std::vector<std::int64_t> source;  // the row given that each is a copy of; a mask of the root's
  std::vector<std::int64_t> masks;   // which rows are masks
  std::vector<std::int32_t> starts;
  std::vector<std::int64_t> guesses;  // of each request the root's row and its masks
};

MaskedRows with_masks(const RolloutInputs& given, std::int64_t num_masks,
                      std::int64_t tokens_per_block, std::int64_t mask_token) {
  const RowPlaces& rows = given.engine.rows;
  const auto* ids = given.engine.input_ids.const_data_ptr<std::int64_t>();
  const auto* positions = rows.positions.const_data_ptr<std::int64_t>();
  const auto* slots = rows.slot_mapping.const_data_ptr<std::int64_t>();
  const auto* starts = rows.query_start.const_data_ptr<std::int32_t>();
  const auto* last_rows = given.last_rows.const_data_ptr<std::int64_t>();
  MaskedRows made;
  made.starts.push_back(0);
  for (std::int64_t request = 0; request < given.num_requests(); ++request) {
    for (std::int64_t row = starts[request]; row < starts[request + 1]; ++row) {
      made.ids.push_back(ids[row]);
      made.positions.push_back(positions[row]);
      made.slots.push_back(slots[row]);
      made.source.push_back(row);
    }
    const std::int64_t root = last_rows[request];
    made.guesses.push_back(root + request * num_masks);
    for (std::int64_t ahead = 1; ahead <= num_masks; ++ahead) {
      const auto row = static_cast<std::int64_t>(made.ids.size());
      made.guesses.push_back(row);
      made.masks.push_back(row);
      made.ids.push_back(mask_token);
      made.positions.push_back(positions[root] + ahead);
      made.slots.push_back(given.slot(request, positions[root] + ahead, tokens_per_block));
      made.source.push_back(root);
    }
    made.starts.push_back(static_cast<std::int32_t>(made.ids.size()));
  }
  return made;
}

}  // namespace

ParallelRollout::ParallelRollout(std::shared_ptr<DraftNetwork> network, const TreeShape& shape,
                                 std::int64_t tokens_per_block, std::int64_t mask_token)
    : network_(std::move(network)),
      tree_(shape),
      num_masks_(shape.num_steps - 1),
      tokens_per_block_(tokens_per_block),
      mask_token_(mask_token) {
  if (network_->reads_states() && !network_->mask_hidden().defined()) {
    throw std::logic_error("a parallel network over states knows what its masks read");
  }
}

std::vector<at::Tensor> ParallelRollout::run(std::vector<at::Tensor> inputs) {
  const RolloutInputs given = RolloutInputs::of(inputs, network_->num_caches());
  const EngineInputs& engine = given.engine;
  const MaskedRows masked = with_masks(given, num_masks_, tokens_per_block_, mask_token_);
  const at::Tensor source = to_tensor(masked.source);
  at::Tensor features;
  if (given.hidden.defined()) {
    at::Tensor states = given.hidden.index_select(0, source);
    if (num_masks_ > 0) {
      const at::Tensor read = network_->mask_hidden().view({1, -1});
      states.index_copy_(0, to_tensor(masked.masks),
                         read.expand({static_cast<std::int64_t>(masked.masks.size()), -1}));
    }
    features = network_->fuse(states);
  }
  const RowPlaces rows{to_tensor(masked.positions),
                       to_tensor(masked.slots),
                       engine.rows.block_tables,
                       to_tensor(masked.starts),
                       engine.rows.context_lens,
                       engine.rows.is_tree,
                       engine.rows.tree_mask.index_select(0, source)};
  const at::Tensor ready =
      network_->draft(to_tensor(masked.ids), features, rows, engine.caches).ready;
  const std::int64_t depths = num_masks_ + 1;
  const Candidates found = draft_rows(*network_, ready.index_select(0, to_tensor(masked.guesses)),
                                      given.sampling, {depths, 0, 1}, tree_.count());
  std::vector<DraftNodes> trees;
  for (std::int64_t request = 0; request < given.num_requests(); ++request) {
    trees.push_back(tree_.grow(found.ids_of(request * depths, depths),
                               found.gains_of(request * depths, depths)));
  }
  return to_outputs(trees);
}

}  // namespace trtspec
