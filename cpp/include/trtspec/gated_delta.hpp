// The gated delta rule (Yang et al., arXiv 2412.06464), row by row along each path.
#pragma once
#include <trtspec/dtype.hpp>
#include <trtspec/state_walk.hpp>

namespace trtspec {

struct GatedDeltaParams {
  // These have `dtype`; arithmetic is in float.
  const void* qkv;    // [rows, 2 * key_heads * key_dim + value_heads * value_dim]
  const void* gates;  // [rows, 2 * value_heads]: of beta, then of the decay
  void* kept;         // [kept_rows, 2 * value_heads]: gates
  void* out;          // [rows, value_heads, value_dim]
  DType dtype;

  const float* a_log;    // [value_heads]
  const float* dt_bias;  // [value_heads]
  float* state;          // [num_states, value_heads, key_dim, value_dim]

  std::int64_t key_heads;
  std::int64_t value_heads;  // a multiple
  bool tiled;                // value head h has key head h % key_heads; else they share in turn
  std::int64_t key_dim;
  std::int64_t value_dim;
  StateWalk walk;

  constexpr std::int64_t key_head_of(std::int64_t head) const {
    return tiled ? head % key_heads : head / (value_heads / key_heads);
  }
};

// Contract: trtspec/ops/gated_delta.py. A column of a head's state is a chain of its own, over the
// keys in order: no bit of a row depends on the others or on the number of threads. Throws
// std::invalid_argument.
void gated_delta(const GatedDeltaParams& params);

}  // namespace trtspec
