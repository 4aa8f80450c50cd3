// mamba2: as gated_delta, a block has some columns of a head's state in shared memory, a thread one of
// them, and goes through all rows of a request, or of a tree along a row's path.
#include <kernels.hpp>

#include "launch.hpp"
#include "state_walk.cuh"

namespace trtspec::cuda {
namespace {

constexpr int kColumns = 64;

// All threads of a block call each of these.
template <class T>
class HeadColumns {
 public:
  __device__ HeadColumns(const Mamba2Params& p, std::int64_t request)
      : p_(p),
        request_(request),
        head_(blockIdx.y),
        column_(std::int64_t{blockIdx.z} * kColumns + threadIdx.x),
        b_(reinterpret_cast<float*>(dynamic_shared())),
        c_(b_ + p.state_size),
        own_(c_ + p.state_size + threadIdx.x) {}

  __device__ bool is_there() const { return column_ < p_.head_dim; }

  __device__ void load_state() {
    const bool is_new = p_.walk.context_lens[request_] == 0;
    for (std::int64_t n = 0; n < p_.state_size; ++n) {
      own_[n * kColumns] = is_new || !is_there() ? 0 : state()[n * p_.head_dim];
    }
  }

  __device__ void store_state() const {
    if (!is_there()) return;
    for (std::int64_t n = 0; n < p_.state_size; ++n) state()[n * p_.head_dim] = own_[n * kColumns];
  }

  // The output of the row's column, before its gate.
  __device__ float take_in(std::int64_t row) {
    const T* x = static_cast<const T*>(p_.xbc) + row * (inner() + 2 * p_.groups * p_.state_size);
    const T* b = x + inner() + head_ / (p_.heads / p_.groups) * p_.state_size;
    for (std::int64_t n = threadIdx.x; n < p_.state_size; n += kColumns) {
      b_[n] = to_float(b[n]);
      c_[n] = to_float(b[p_.groups * p_.state_size + n]);
    }
    __syncthreads();
    const T* steps = static_cast<const T*>(p_.dt) + row * p_.dt_row_stride;
    const float raw = to_float(steps[head_]) + p_.dt_bias[head_];
    const float softplus = raw > 20 ? raw : log1pf(expf(raw));
    const float step = fminf(fmaxf(softplus, p_.dt_min), p_.dt_max);
    const float decay = expf(-expf(p_.a_log[head_]) * step);
    const float own = is_there() ? to_float(x[value()]) : 0;
    float out = 0;
    for (std::int64_t n = 0; n < p_.state_size; ++n) {
      const float next = decay * own_[n * kColumns] + b_[n] * (step * own);
      own_[n * kColumns] = next;
      out += c_[n] * next;
    }
    __syncthreads();  // the next row's B and C come where this one's were
    return out + p_.skip[head_] * own;
  }

  __device__ void store(std::int64_t row, float read) const {
    if (!is_there()) return;
    const T* gates = static_cast<const T*>(p_.gate) + row * p_.gate_row_stride;
    const float gate = to_float(gates[value()]);
    const float out = request_ < 0 ? 0 : read * (gate / (1 + expf(-gate)));
    from_float(out, static_cast<T*>(p_.out)[row * inner() + value()]);
  }

  __device__ void keep(std::int64_t row) const {
    if (column_ != 0) return;
    static_cast<T*>(p_.kept)[row * p_.heads + head_] =
        static_cast<const T*>(p_.dt)[row * p_.dt_row_stride + head_];
  }

 private:
  __device__ std::int64_t inner() const { return p_.heads * p_.head_dim; }
  __device__ std::int64_t value() const { return head_ * p_.head_dim + column_; }

  __device__ float* state() const {
    const std::int64_t place = p_.walk.state_slots[request_] * p_.heads + head_;
    return p_.state + place * p_.state_size * p_.head_dim + column_;
  }

  const Mamba2Params& p_;
  std::int64_t request_, head_, column_;
  float* b_;
  float* c_;
  float* own_;  // the thread's column: element n is own_[n * kColumns]
};

// blockIdx.x: a row.
template <class T>
__global__ void __launch_bounds__(kColumns) read(const __grid_constant__ Mamba2Params p) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t request = request_of(p.walk, row);
  HeadColumns<T> columns(p, request);
  read_states(p.walk, row, request, columns);
}

// blockIdx.x: a request, whose root is taken in if it is a tree.
template <class T>
__global__ void __launch_bounds__(kColumns) take_in(const __grid_constant__ Mamba2Params p) {
  HeadColumns<T> columns(p, blockIdx.x);
  take_in_root(p.walk, blockIdx.x, columns);
}

template <class T>
cudaError_t run(const Mamba2Params& p, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(p.heads);
  const auto blocks = static_cast<unsigned>(divide_up(p.head_dim, kColumns));
  const std::size_t shared =
      static_cast<std::size_t>(p.state_size) * (kColumns + 2) * sizeof(float);
  const dim3 rows(static_cast<unsigned>(p.walk.rows), heads, blocks);
  const cudaError_t error = launch(read<T>, rows, kColumns, shared, stream, p);
  if (error != cudaSuccess || p.walk.requests == 0) return error;
  const dim3 requests(static_cast<unsigned>(p.walk.requests), heads, blocks);
  return launch(take_in<T>, requests, kColumns, shared, stream, p);
}

}  // namespace

cudaError_t mamba2(const Mamba2Params& params, cudaStream_t stream) {
  if (params.walk.rows <= 0) return cudaSuccess;
  switch (params.dtype) {
    case DType::f32: return run<float>(params, stream);
    case DType::bf16: return run<bf16>(params, stream);
    case DType::f16: return run<f16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
