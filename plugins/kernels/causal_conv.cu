// causal_conv: a thread convolves one channel of one row, walking back along its path; behind all
// of them, a thread moves one channel of a request's tail.
#include <kernels.hpp>

#include "launch.hpp"
#include "state_walk.cuh"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;

// One channel of the rows before a row, the nearest first.
template <class T>
class Inputs {
 public:
  __device__ Inputs(const CausalConvParams& p, std::int64_t request, std::int64_t row,
                    std::int64_t channel)
      : p_(p), request_(request), row_(row), channel_(channel) {}

  // What stands there as bits of T; of a row before all, zero.
  __device__ T next() {
    if (row_ >= 0) {
      const T found = static_cast<const T*>(p_.x)[row_ * p_.x_row_stride + channel_];
      row_ = parent_of(p_.walk, request_, row_);
      return found;
    }
    const std::int64_t entry = p_.width - 2 - committed_++;
    if (p_.walk.context_lens[request_] == 0) return T{};
    return tail()[entry * p_.channels];
  }

  __device__ T* tail() const {
    const std::int64_t state = p_.walk.state_slots[request_] * (p_.width - 1);
    return static_cast<T*>(p_.tail) + state * p_.channels + channel_;
  }

 private:
  const CausalConvParams& p_;
  std::int64_t request_, row_, channel_;
  std::int64_t committed_ = 0;  // entries of the tail that were given
};

template <class T>
__global__ void __launch_bounds__(kThreads) convolve(const __grid_constant__ CausalConvParams p) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t channel = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (channel >= p.channels) return;
  T& out = static_cast<T*>(p.out)[row * p.channels + channel];
  const std::int64_t request = request_of(p.walk, row);
  if (request < 0) {
    out = T{};
    return;
  }
  Inputs<T> inputs(p, request, row, channel);
  float sum = p.bias == nullptr ? 0 : to_float(static_cast<const T*>(p.bias)[channel]);
  for (std::int64_t j = p.width - 1; j >= 0; --j) {
    sum += to_float(inputs.next()) *
           to_float(static_cast<const T*>(p.weight)[j * p.channels + channel]);
  }
  from_float(sum / (1 + expf(-sum)), out);
  if (p.walk.is_tree[request] && row > p.walk.query_start[request]) {
    static_cast<T*>(p.kept)[row * p.channels + channel] =
        static_cast<const T*>(p.x)[row * p.x_row_stride + channel];
  }
}

// Entries are written in the order of time, and each reads none before itself.
template <class T>
__global__ void __launch_bounds__(kThreads) take_in(const __grid_constant__ CausalConvParams p) {
  const std::int64_t request = blockIdx.x;
  const std::int64_t channel = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t first = p.walk.query_start[request];
  const std::int64_t end = p.walk.query_start[request + 1];
  if (channel >= p.channels || first == end || p.walk.state_slots[request] < 0) return;
  const std::int64_t last = p.walk.is_tree[request] ? first : end - 1;
  for (std::int64_t entry = 0; entry < p.width - 1; ++entry) {
    Inputs<T> inputs(p, request, last, channel);
    T newest = inputs.next();
    for (std::int64_t back = p.width - 2; back > entry; --back) newest = inputs.next();
    inputs.tail()[entry * p.channels] = newest;
  }
}

template <class T>
cudaError_t run(const CausalConvParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(divide_up(p.channels, kThreads));
  const dim3 rows(static_cast<unsigned>(p.walk.rows), blocks);
  const cudaError_t error = launch(convolve<T>, rows, kThreads, 0, stream, p);
  if (error != cudaSuccess || p.walk.requests == 0) return error;
  const dim3 requests(static_cast<unsigned>(p.walk.requests), blocks);
  return launch(take_in<T>, requests, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t causal_conv(const CausalConvParams& params, cudaStream_t stream) {
  if (params.walk.rows <= 0) return cudaSuccess;
  switch (params.dtype) {
    case DType::f32: return run<float>(params, stream);
    case DType::bf16: return run<bf16>(params, stream);
    case DType::f16: return run<f16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
