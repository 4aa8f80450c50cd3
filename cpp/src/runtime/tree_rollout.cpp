// TreeRollout: every depth a pass over the best nodes of the last one.
#include <trtspec/runtime/rollouts.hpp>
#include <utility>

#include "rollout_parts.hpp"

namespace trtspec {

TreeRollout::TreeRollout(std::shared_ptr<DraftNetwork> network, const TreeShape& shape,
                         std::int64_t tokens_per_block)
    : network_(std::move(network)), levels_(shape), tokens_per_block_(tokens_per_block) {}

std::vector<at::Tensor> TreeRollout::run(std::vector<at::Tensor> inputs) {
  const RolloutInputs given = RolloutInputs::of(inputs, network_->num_caches());
  const EngineInputs& engine = given.engine;
  const at::Tensor& block_tables = engine.rows.block_tables;
  const std::vector<std::int64_t>& branching = levels_.branching();

  at::Tensor features;
  if (given.hidden.defined()) features = network_->fuse(given.hidden);
  DraftNetwork::Passed passed =
      network_->draft(engine.input_ids, features, engine.rows, engine.caches);
  features =
      passed.features.defined() ? passed.features.index_select(0, given.last_rows) : at::Tensor();
  Candidates found = draft_rows(*network_, passed.ready.index_select(0, given.last_rows),
                                given.sampling, {1, 0, 0}, branching[0]);
  TreeGrowth growth(levels_, rollout_roots(engine.rows, given.last_rows), tokens_per_block_,
                    engine.rows.tree_mask.size(1));
  growth.record(found.ids, found.gains, found.count);
  while (growth.can_go_on()) {
    const BeamRows beam = growth.next();
    const std::vector<at::Tensor> rows = beam_tensors(beam, block_tables);
    if (features.defined()) features = features.index_select(0, to_tensor(beam.rows_above));
    passed = network_->draft(rows[0], features, RowPlaces::of(std::span(rows).subspan(1)),
                             engine.caches);
    features = passed.features;
    found = draft_rows(*network_, passed.ready, given.sampling, {beam.width, beam.depth, 0},
                       branching[static_cast<std::size_t>(beam.depth)]);
    growth.record(found.ids, found.gains, found.count);
  }
  return to_outputs(growth.trees());
}

}  // namespace trtspec
