// What the rollouts over lowered graphs share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <trtspec/runtime/networks.hpp>
#include <trtspec/runtime/pass_rollout.hpp>
#include <trtspec/tree_levels.hpp>
#include <vector>

#include "tensors.hpp"

namespace trtspec {

// The inputs of a rollout beside its rows; see trtspec/backends/inputs.py.
struct RolloutInputs {
  static constexpr std::size_t kColumns = 7;

  EngineInputs engine;
  at::Tensor last_rows;                  // [B] i64
  std::span<const at::Tensor> sampling;  // columns [B]
  at::Tensor hidden;                     // undefined for a network that reads no states

  // Valid as long as the list is.
  static RolloutInputs of(std::span<const at::Tensor> inputs, std::size_t num_caches);

  std::int64_t num_requests() const { return last_rows.size(0); }
  // The cache slot of a request's position.
  std::int64_t slot(std::int64_t request, std::int64_t position,
                    std::int64_t tokens_per_block) const;
};

// Rows of candidates, `count` each: target ids, best first, and their log probabilities.
struct Candidates {
  std::vector<std::int64_t> ids;
  std::vector<float> gains;
  std::int64_t count;

  std::span<const std::int64_t> ids_of(std::int64_t row, std::int64_t rows = 1) const {
    return std::span(ids).subspan(static_cast<std::size_t>(row * count),
                                  static_cast<std::size_t>(rows * count));
  }
  std::span<const float> gains_of(std::int64_t row, std::int64_t rows = 1) const {
    return std::span(gains).subspan(static_cast<std::size_t>(row * count),
                                    static_cast<std::size_t>(rows * count));
  }
};

// Which output token the rows of a request sample: its first drafted one, `depth` later, and
// `step` more from row to row.
struct SampledDepths {
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t step;
};

// The best candidates of rows that are ready for the head, `depths.rows` of each request.
Candidates draft_rows(DraftNetwork& network, const at::Tensor& ready,
                      std::span<const at::Tensor> sampling, const SampledDepths& depths,
                      std::int64_t count);

}  // namespace trtspec
