#pragma once
#include <trtspec/gated_delta.hpp>

#include "isa.hpp"
#include "state_walk.hpp"

namespace trtspec {

constexpr std::int64_t kDeltaColumns = 64;  // of a head's state that a task has, at most

// Where a call's intermediate results lie, in floats.
struct DeltaScratch {
  float* rows;  // [row][row_size]: of each key head q and k, of each value head beta and decay
  std::int64_t row_size;
  float* copies;             // [thread][copy][key_dim][kDeltaColumns] of states
  std::int64_t copies_size;  // of a thread
};

// Every path goes through each head of its state.
TRTSPEC_DECLARE_KERNEL(void, gated_delta_kernel,
                       (const GatedDeltaParams& params, const StatePath* paths,
                        std::int64_t num_paths, const DeltaScratch& scratch, int threads))

}  // namespace trtspec
