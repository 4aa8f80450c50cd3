#include "trtspec/runtime/networks.hpp"

#include <stdexcept>
#include <utility>

namespace trtspec {

EngineInputs EngineInputs::of(std::span<const at::Tensor> inputs, std::size_t num_caches) {
  constexpr std::size_t kRows = 1 + RowPlaces::kCount;
  if (inputs.size() < kRows + num_caches) throw std::logic_error("an engine lacks inputs");
  return {inputs[0], RowPlaces::of(inputs.subspan(1, RowPlaces::kCount)),
          inputs.subspan(kRows, inputs.size() - kRows - num_caches), inputs.last(num_caches)};
}

TargetNetwork::TargetNetwork(SlotGraph graph, std::size_t num_caches)
    : graph_(std::move(graph)), num_caches_(num_caches) {}

std::vector<at::Tensor> TargetNetwork::run(std::vector<at::Tensor> inputs) {
  const EngineInputs given = EngineInputs::of(inputs, num_caches_);
  return graph_.run(given.input_ids, given.rows, given.caches,
                    {.features = {}, .logits_rows = given.extra[0]});
}

DraftNetwork::DraftNetwork(Parts parts, std::size_t num_caches)
    : parts_(std::move(parts)), num_caches_(num_caches) {}

at::Tensor DraftNetwork::fuse(const at::Tensor& states) {
  return parts_.fuse->run({states.contiguous()}).at(0);
}

DraftNetwork::Passed DraftNetwork::draft(const at::Tensor& input_ids, const at::Tensor& features,
                                         const RowPlaces& rows,
                                         std::span<const at::Tensor> caches) {
  const std::vector<at::Tensor> outputs =
      parts_.pass.run(input_ids, rows, caches, {.features = features, .logits_rows = {}});
  return {.features = outputs.size() > 1 ? outputs[1] : at::Tensor(), .ready = outputs.at(0)};
}

at::Tensor DraftNetwork::head(const at::Tensor& ready) {
  return parts_.head->run({ready.contiguous()}).at(0);
}

ModuleStack::ModuleStack(std::vector<DraftNetwork> depths, std::size_t num_caches)
    : depths_(std::move(depths)), num_caches_(num_caches) {}

DraftNetwork::Passed ModuleStack::draft(std::size_t depth, const at::Tensor& input_ids,
                                        const at::Tensor& features, const RowPlaces& rows,
                                        std::span<const at::Tensor> caches) {
  const std::size_t own = num_caches_ / depths_.size();
  return depths_[depth].draft(input_ids, features, rows, caches.subspan(depth * own, own));
}

at::Tensor moved_up(const at::Tensor& input_ids) { return input_ids.roll(-1); }

ModulesFeed::ModulesFeed(std::shared_ptr<ModuleStack> stack) : stack_(std::move(stack)) {}

std::vector<at::Tensor> ModulesFeed::run(std::vector<at::Tensor> inputs) {
  const EngineInputs given = EngineInputs::of(inputs, stack_->num_caches());
  at::Tensor ids = given.input_ids, features = given.extra[0];
  for (std::size_t depth = 0; depth < stack_->size(); ++depth) {
    features = stack_->draft(depth, ids, features, given.rows, given.caches).features;
    ids = moved_up(ids);
  }
  return {features};
}

}  // namespace trtspec
