// PassRollout: the rollout of a draft whose graph makes one pass, as a loop that stops where the next
// pass does not pay.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <trtspec/beam_states.hpp>
#include <trtspec/runtime/padding.hpp>
#include <trtspec/runtime/session.hpp>
#include <trtspec/tree_growth.hpp>
#include <vector>

namespace trtspec {

// The graph takes packed rows (see PackedRows of packing.hpp), the rows [R] i64 whose children are
// wanted, their sampling columns [R] and the caches, and returns ids [R, k] i64, best first, and
// their log probabilities [R, k] f32. Of a network that keeps states it takes those of the requests
// [B] i32 behind the rows; each row of a later pass is a request of its own then, with a scratch state
// (see BeamStates), so that it is walked as a certain row is. Not thread-safe.
class PassRollout {
 public:
  using Tensors = std::vector<at::Tensor>;

  // states: which of the caches that `run` is given hold states; their buffers lie on the host.
  PassRollout(const TreeShape& shape, std::int64_t tokens_per_block,
              std::vector<std::int64_t> states = {});

  // Rolls out: `inputs` are the packed rows, the row of each request's root [B] i64, and sampling
  // columns [B] with the output index of the first drafted token. Returns tokens i64, parents i32
  // and scores f32, each [B, n] with n <= N - 1, where -inf is the score of what is no node.
  Tensors run(Session& session, Tensors inputs, std::span<const at::Tensor> caches, StopRule rule);

  // The same call by call, for what C++ cannot call. The inputs of a pass without caches; none
  // where there is no further pass. num_states: in each buffer of states; 0: there is none.
  Tensors begin(Tensors inputs, std::int64_t num_states, StopRule rule);
  // `seconds`: that the pass took.
  Tensors next(const at::Tensor& ids, const at::Tensor& gains, double seconds);
  // Copies of states to be made before the pass that `next` returned.
  const BeamStates::Pass& copies() const { return copies_; }
  Tensors trees() const;

  // Passes of this rollout.
  std::int64_t num_passes() const { return num_passes_; }

 private:
  Tensors columns(std::int64_t rows, std::int64_t depth) const;
  // Makes each row of a beam a request of its own, with the state that `copies_` says.
  at::Tensor split(BeamRows& beam);

  Levels levels_;
  std::int64_t tokens_per_block_;
  std::vector<std::int64_t> state_places_;
  std::map<std::int64_t, double> seconds_;  // of a pass, by its rows, in the mean of late

  // Of the rollout under way.
  at::Tensor block_tables_;
  Tensors columns_;
  std::optional<TreeGrowth> growth_;
  std::optional<BeamStates> beam_states_;
  BeamStates::Pass copies_;
  std::int64_t rows_ = 0;  // of the pass under way; 0: the first one, whose rows vary
  std::int64_t num_passes_ = 0;
};

// The inputs of a pass over the rows of a beam: ids, then what RowPlaces has.
std::vector<at::Tensor> beam_tensors(const BeamRows& beam, const at::Tensor& block_tables);

// Where the rollouts of packed rows begin: the roots' positions and the requests' blocks.
std::vector<RolloutRoot> rollout_roots(const RowPlaces& rows, const at::Tensor& last_rows);

// What a rollout returns: tokens i64, parents i32 and scores f32, each [B, n]; the trees are of one
// size.
std::vector<at::Tensor> to_outputs(std::span<const DraftNodes> trees);

}  // namespace trtspec
