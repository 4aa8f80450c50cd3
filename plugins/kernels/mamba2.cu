// mamba2, over columns of the heads' states: state_size by head_dim.
#include <kernels.hpp>

#include "state_columns.cuh"

namespace trtspec::cuda {
namespace {

// All threads of a block call each of these.
template <class T>
class HeadColumns : public StateColumns {
 public:
  __device__ HeadColumns(const Mamba2Params& p, std::int64_t request)
      : StateColumns(p.walk, request, p.state, p.heads, p.state_size, p.head_dim),
        p_(p),
        b_(vectors_[0]),
        c_(vectors_[1]) {}

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

  const Mamba2Params& p_;
  float* const b_;
  float* const c_;
};

template <class T>
cudaError_t run(const Mamba2Params& p, cudaStream_t stream) {
  return walk_states<HeadColumns<T>>(p, p.heads, p.state_size, p.head_dim, stream);
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
