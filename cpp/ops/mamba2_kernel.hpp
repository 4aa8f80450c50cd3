#pragma once
#include <trtspec/mamba2.hpp>

#include "isa.hpp"
#include "state_walk.hpp"

namespace trtspec {

constexpr std::int64_t kStateColumns = 64;  // of a head's state that a task has

constexpr std::int64_t column_blocks(std::int64_t head_dim) {
  return (head_dim + kStateColumns - 1) / kStateColumns;
}

// Every head, block of its columns and path of the call; `scratch` has for each thread room for B
// and C of a row and `copies` of a block of a state.
TRTSPEC_DECLARE_KERNEL(void, mamba2_kernel,
                       (const Mamba2Params& params, const StatePath* paths, std::int64_t num_paths,
                        std::int64_t copies, float* scratch, int threads))

constexpr std::int64_t mamba2_scratch(std::int64_t state_size, std::int64_t copies) {
  return state_size * (2 + copies * kStateColumns);
}

}  // namespace trtspec
