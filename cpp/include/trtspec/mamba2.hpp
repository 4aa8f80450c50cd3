// Selective states (Mamba-2: Dao and Gu, arXiv 2405.21060), row by row along each path.
#pragma once
#include <trtspec/dtype.hpp>
#include <trtspec/state_walk.hpp>

namespace trtspec {

struct Mamba2Params {
  // These have `dtype`; arithmetic is in float. Elements of a row lie side by side; strides are in
  // elements.
  const void* xbc;  // [rows, heads * head_dim + 2 * groups * state_size]
  const void* dt;   // [rows, heads]
  std::int64_t dt_row_stride;
  const void* gate;  // [rows, heads * head_dim]
  std::int64_t gate_row_stride;
  void* kept;  // [kept_rows, heads]: dt
  void* out;   // [rows, heads * head_dim]
  DType dtype;

  const float* a_log;    // [heads]
  const float* dt_bias;  // [heads]
  const float* skip;     // [heads]
  float dt_min;
  float dt_max;
  float* state;  // [num_states, heads, state_size, head_dim]

  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t groups;  // of heads that share B and C
  std::int64_t state_size;
  StateWalk walk;
};

// Contract: trtspec/ops/mamba2.py. A column of a head's state is a chain of its own, over the state
// size in order: no bit of a row depends on the others or on the number of threads. Throws
// std::invalid_argument.
void mamba2(const Mamba2Params& params);

}  // namespace trtspec
