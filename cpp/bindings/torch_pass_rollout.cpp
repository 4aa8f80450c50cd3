// Rollouts pass by pass as torch sees them (used by trtspec/executor/engines/pass_rollout.py): the
// whole loop over a package, or call by call over what Python runs.
#include <trtspec/runtime/pass_rollout.hpp>

#include <optional>
#include <tuple>

#include "package_holder.hpp"

namespace {

using Tensors = std::vector<at::Tensor>;
using Ints = std::vector<int64_t>;

// gains: float32 [depths, levels].
trtspec::StopRule rule_of(int64_t max_depth, double pace, const std::optional<at::Tensor>& gains,
                          double p_min) {
  trtspec::StopRule rule{.max_depth = max_depth, .pace = pace, .p_min = p_min};
  if (gains) {
    TORCH_CHECK(gains->dim() == 2 && gains->scalar_type() == at::kFloat && gains->is_contiguous(),
                "gains must be contiguous float32 of two dimensions");
    const auto* values = gains->const_data_ptr<float>();
    rule.gains.assign(values, values + gains->numel());
    rule.num_levels = int32_t(gains->size(1));
  }
  return rule;
}

struct PassRolloutHolder : torch::CustomClassHolder {
  PassRolloutHolder(int64_t topk, int64_t num_steps, int64_t num_draft_tokens,
                    std::vector<Ints> choices, int64_t tokens_per_block, Ints states,
                    std::optional<c10::intrusive_ptr<PackageHolder>> package)
      : rollout({topk, num_steps, num_draft_tokens, std::move(choices)}, tokens_per_block,
                std::move(states)),
        package(std::move(package)) {}

  // Tokens, parents and scores, and how many passes were made.
  std::tuple<Tensors, int64_t> run(Tensors inputs, const Tensors& caches, int64_t max_depth,
                                   double pace, const std::optional<at::Tensor>& gains,
                                   double p_min) {
    TORCH_CHECK(package, "a rollout without a package is called pass by pass");
    Tensors trees =
        rollout.run(**package, std::move(inputs), caches, rule_of(max_depth, pace, gains, p_min));
    return {std::move(trees), rollout.num_passes()};
  }

  Tensors begin(Tensors inputs, int64_t num_states, int64_t max_depth, double pace,
                const std::optional<at::Tensor>& gains, double p_min) {
    return rollout.begin(std::move(inputs), num_states, rule_of(max_depth, pace, gains, p_min));
  }

  Tensors next(const at::Tensor& ids, const at::Tensor& gains, double seconds) {
    return rollout.next(ids, gains, seconds);
  }

  // From where to where states are copied before the next pass.
  std::tuple<Ints, Ints> copies() { return {rollout.copies().from, rollout.copies().to}; }

  std::tuple<Tensors, int64_t> trees() { return {rollout.trees(), rollout.num_passes()}; }

  trtspec::PassRollout rollout;
  std::optional<c10::intrusive_ptr<PackageHolder>> package;
};

}  // namespace

void register_pass_rollout(torch::Library& library) {
  library.class_<PassRolloutHolder>("PassRollout")
      .def(torch::init<int64_t, int64_t, int64_t, std::vector<Ints>, int64_t, Ints,
                       std::optional<c10::intrusive_ptr<PackageHolder>>>())
      .def("run", &PassRolloutHolder::run)
      .def("begin", &PassRolloutHolder::begin)
      .def("next", &PassRolloutHolder::next)
      .def("copies", &PassRolloutHolder::copies)
      .def("trees", &PassRolloutHolder::trees);
}
