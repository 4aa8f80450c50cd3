// VanillaRollout: a chain, each of its tokens drafted by a module of its own.
#include <ATen/ops/cumsum.h>

#include <trtspec/runtime/rollouts.hpp>
#include <utility>

#include "rollout_parts.hpp"

namespace trtspec {

VanillaRollout::VanillaRollout(std::shared_ptr<ModuleStack> stack) : stack_(std::move(stack)) {}

std::vector<at::Tensor> VanillaRollout::run(std::vector<at::Tensor> inputs) {
  const RolloutInputs given = RolloutInputs::of(inputs, stack_->num_caches());
  const EngineInputs& engine = given.engine;
  const std::int64_t batch = given.num_requests();
  const auto depths = static_cast<std::int64_t>(stack_->size());
  const auto count = static_cast<std::size_t>(batch * depths);
  std::vector<std::int64_t> tokens(count);
  std::vector<std::int32_t> parents(count);
  std::vector<float> gains(count);
  at::Tensor ids = engine.input_ids, features = given.hidden;
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    const auto index = static_cast<std::size_t>(depth);
    const DraftNetwork::Passed passed =
        stack_->draft(index, ids, features, engine.rows, engine.caches);
    features = passed.features;
    const Candidates found =
        draft_rows(stack_->at(index), passed.ready.index_select(0, given.last_rows), given.sampling,
                   {1, depth, 0}, 1);
    for (std::int64_t request = 0; request < batch; ++request) {
      const auto from = static_cast<std::size_t>(request);
      const auto to = static_cast<std::size_t>(request * depths + depth);
      tokens[to] = found.ids[from];
      parents[to] = static_cast<std::int32_t>(depth - 1);
      gains[to] = found.gains[from];
    }
    // The newest token is what each request's last row reads next.
    ids = moved_up(ids).index_copy(0, given.last_rows, to_tensor(found.ids));
  }
  const std::vector<std::int64_t> sizes = {batch, depths};
  return {to_tensor(tokens).view(sizes), to_tensor(parents).view(sizes),
          at::cumsum(to_tensor(gains).view(sizes), 1)};
}

}  // namespace trtspec
