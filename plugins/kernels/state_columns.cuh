// What the recurrent ops share: a block has some columns of a head's state in shared memory, a thread
// one of them, and goes through all rows of a request; of a tree each row is a block's, which walks
// its path from the committed state. The root's state is written behind all blocks that read what lay
// there.
#pragma once

#include "launch.hpp"
#include "state_walk.cuh"

namespace trtspec::cuda {

constexpr int kColumns = 64;

// A thread's column of a head's state, beside the two vectors of a row that all columns share.
class StateColumns {
 public:
  // states: float [slots, heads, depth, width], whose last two the state of a head is.
  __device__ StateColumns(const StateWalk& walk, std::int64_t request, float* states,
                          std::int64_t heads, std::int64_t depth, std::int64_t width)
      : head_(blockIdx.y),
        column_(std::int64_t{blockIdx.z} * kColumns + threadIdx.x),
        request_(request),
        vectors_{reinterpret_cast<float*>(dynamic_shared()),
                 reinterpret_cast<float*>(dynamic_shared()) + depth},
        own_(vectors_[1] + depth + threadIdx.x),
        walk_(walk),
        states_(states),
        heads_(heads),
        depth_(depth),
        width_(width) {}

  __device__ bool is_there() const { return column_ < width_; }

  __device__ void load_state() {
    const bool is_new = walk_.context_lens[request_] == 0;
    for (std::int64_t d = 0; d < depth_; ++d) {
      own_[d * kColumns] = is_new || !is_there() ? 0 : state()[d * width_];
    }
  }

  __device__ void store_state() const {
    if (!is_there()) return;
    for (std::int64_t d = 0; d < depth_; ++d) state()[d * width_] = own_[d * kColumns];
  }

 protected:
  const std::int64_t head_, column_;
  const std::int64_t request_;  // -1: padding
  float* const vectors_[2];     // [depth] each
  float* const own_;            // element d of the column is own_[d * kColumns]

 private:
  __device__ float* state() const {
    const std::int64_t place = walk_.state_slots[request_] * heads_ + head_;
    return states_ + place * depth_ * width_ + column_;
  }

  const StateWalk& walk_;
  float* const states_;
  const std::int64_t heads_, depth_, width_;
};

// blockIdx.x: a row.
template <class Columns, class Params>
__global__ void __launch_bounds__(kColumns) read(const __grid_constant__ Params p) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t request = request_of(p.walk, row);
  Columns columns(p, request);
  read_states(p.walk, row, request, columns);
}

// blockIdx.x: a request, whose root is taken in if it is a tree.
template <class Columns, class Params>
__global__ void __launch_bounds__(kColumns) take_in(const __grid_constant__ Params p) {
  Columns columns(p, blockIdx.x);
  take_in_root(p.walk, blockIdx.x, columns);
}

template <class Columns, class Params>
cudaError_t walk_states(const Params& p, std::int64_t heads, std::int64_t depth, std::int64_t width,
                        cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(divide_up(width, kColumns));
  const std::size_t shared = static_cast<std::size_t>(depth) * (kColumns + 2) * sizeof(float);
  const dim3 rows(static_cast<unsigned>(p.walk.rows), static_cast<unsigned>(heads), blocks);
  const cudaError_t error = launch(read<Columns, Params>, rows, kColumns, shared, stream, p);
  if (error != cudaSuccess || p.walk.requests == 0) return error;
  const dim3 requests(static_cast<unsigned>(p.walk.requests), rows.y, blocks);
  return launch(take_in<Columns, Params>, requests, kColumns, shared, stream, p);
}

}  // namespace trtspec::cuda
