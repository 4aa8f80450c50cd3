// BeamStates: where the rows of a rollout's passes keep the states of a network with recurrent layers.
#pragma once

#include <cstdint>
#include <span>
#include <trtspec/tree_growth.hpp>
#include <vector>

namespace trtspec {

// The state of a request has taken in its root, and is not to take in guesses: each row of a beam
// steps a scratch state, whose slots are those from the end of the buffers down. The first child of a
// row goes on in its parent's; the others, and all children of a root, begin on a copy.
class BeamStates {
 public:
  // Slots of states, `from` to be copied to `to` before a pass; none is in both.
  struct Pass {
    std::vector<std::int32_t> slots;  // of the pass's rows, each once; -1: padding
    std::vector<std::int64_t> from;
    std::vector<std::int64_t> to;
  };

  // slots: of the requests' own states, -1 for padding; num_slots: in each buffer.
  BeamStates(std::span<const std::int32_t> slots, std::int64_t num_slots);

  // Where the rows of the next pass step.
  Pass next(const BeamRows& beam);

 private:
  std::vector<std::int32_t> last_;  // slots of the rows last fed
  std::vector<std::int32_t> free_;  // scratch slots of rows without children, a stack
  std::int32_t first_scratch_;      // the lowest one that was used
  bool is_root_ = true;             // these rows are the requests' roots
};

}  // namespace trtspec
