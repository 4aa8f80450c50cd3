// Rollouts over a network of lowered graphs: candidates, beams and trees are chosen between the
// passes, by the kernel that every other backend calls.
#pragma once

#include <cstdint>
#include <memory>
#include <trtspec/runtime/networks.hpp>
#include <trtspec/runtime/session.hpp>
#include <trtspec/tree_levels.hpp>
#include <vector>

namespace trtspec {

// Expands a token tree depth by depth, a pass for each; see TreeRollout in
// trtspec/models/rollout.py for inputs, outputs and the rule.
class TreeRollout final : public Session {
 public:
  TreeRollout(std::shared_ptr<DraftNetwork> network, const TreeShape& shape,
              std::int64_t tokens_per_block);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  std::shared_ptr<DraftNetwork> network_;
  Levels levels_;
  std::int64_t tokens_per_block_;
};

// Drafts every depth in one pass, by rows of a mask token behind each request's own; see
// ParallelRollout in trtspec/models/parallel_rollout.py.
class ParallelRollout final : public Session {
 public:
  ParallelRollout(std::shared_ptr<DraftNetwork> network, const TreeShape& shape,
                  std::int64_t tokens_per_block, std::int64_t mask_token);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  std::shared_ptr<DraftNetwork> network_;
  MarginalTree tree_;
  std::int64_t num_masks_;
  std::int64_t tokens_per_block_;
  std::int64_t mask_token_;
};

// Drafts one token with each module of a stack, a chain; see VanillaRollout in
// trtspec/models/vanilla_rollout.py.
class VanillaRollout final : public Session {
 public:
  explicit VanillaRollout(std::shared_ptr<ModuleStack> stack);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  std::shared_ptr<ModuleStack> stack_;
};

}  // namespace trtspec
