// A short causal convolution over the newest rows of each path, channel by channel, then SiLU.
#pragma once
#include <trtspec/dtype.hpp>
#include <trtspec/state_walk.hpp>

namespace trtspec {

struct CausalConvParams {
  // All of these have `dtype`; arithmetic is in float. Channels lie side by side.
  const void* x;  // [rows, channels]
  std::int64_t x_row_stride;
  const void* weight;  // [width, channels], that of a row itself last
  const void* bias;    // [channels], or null
  void* tail;          // [num_states, width - 1, channels]: the newest inputs, the oldest first
  void* kept;          // [kept_rows, channels]
  void* out;           // [rows, channels]
  DType dtype;

  std::int64_t channels;
  std::int64_t width;
  StateWalk walk;
};

// Contract: trtspec/ops/causal_conv.py. An element is one chain of multiply-adds, the oldest row
// first: no bit of a row depends on the others or on the number of threads. Throws
// std::invalid_argument.
void causal_conv(const CausalConvParams& params);

}  // namespace trtspec
