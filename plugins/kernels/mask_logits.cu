// mask_logits: biases are added, and what must not come is -inf, before rows are sampled.
#include <kernels.hpp>

#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;

// One thread a bias. Equal ones lie side by side: the first adds them all, in their order.
__global__ void __launch_bounds__(kThreads)
    add_biases(float* logits, std::int64_t vocab, const __grid_constant__ LogitsMask m) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= m.num_biases) return;
  const std::int64_t row = m.bias_rows[i], id = m.bias_ids[i];
  const auto is_same = [&](std::int64_t other) {
    return m.bias_rows[other] == row && m.bias_ids[other] == id;
  };
  if (id < 0 || id >= vocab || (i > 0 && is_same(i - 1))) return;
  float logit = logits[row * vocab + id];
  for (std::int64_t at = i; at < m.num_biases && is_same(at); ++at) {
    const float value = m.bias_values[at];
    logit = value == -infinity() ? -infinity() : logit + value;
  }
  logits[row * vocab + id] = logit;
}

// One thread a token, blockIdx.y the row.
__global__ void __launch_bounds__(kThreads)
    forbid(float* logits, std::int64_t vocab, const __grid_constant__ LogitsMask m) {
  const std::int64_t id = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (id >= vocab) return;
  const std::int64_t row = blockIdx.y, word = id / 32;
  const bool may_come =
      word < m.words &&
      (static_cast<std::uint32_t>(m.allowed[row * m.words + word]) >> (id % 32) & 1u) != 0;
  if (!may_come) logits[row * vocab + id] = -infinity();
}

}  // namespace

cudaError_t mask_logits(float* logits, std::int64_t rows, std::int64_t vocab,
                        const LogitsMask& mask, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  if (mask.num_biases > 0) {
    const auto blocks = static_cast<unsigned>(divide_up(mask.num_biases, kThreads));
    const cudaError_t error = launch(add_biases, blocks, kThreads, 0, stream, logits, vocab, mask);
    if (error != cudaSuccess) return error;
  }
  if (mask.allowed == nullptr) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(divide_up(vocab, kThreads)), static_cast<unsigned>(rows));
  return launch(forbid, grid, kThreads, 0, stream, logits, vocab, mask);
}

}  // namespace trtspec::cuda
