// gated_delta, over columns of the heads' states: keys by values.
#include <kernels.hpp>

#include "state_columns.cuh"

namespace trtspec::cuda {
namespace {

constexpr int kWarps = kColumns / kLanes;
constexpr float kTiny = 1e-6f;  // as the CPU kernel

// All threads of a block call each of these.
template <class T>
class HeadColumns : public StateColumns {
 public:
  __device__ HeadColumns(const GatedDeltaParams& p, std::int64_t request)
      : StateColumns(p.walk, request, p.state, p.value_heads, p.key_dim, p.value_dim),
        p_(p),
        query_(vectors_[0]),
        key_(vectors_[1]) {}

  // The output of the row's column.
  __device__ float take_in(std::int64_t row) {
    load_keys(row);
    const T* gates = static_cast<const T*>(p_.gates) + row * 2 * p_.value_heads + head_;
    const float beta = 1 / (1 + expf(-to_float(gates[0])));
    const float step = to_float(gates[p_.value_heads]) + p_.dt_bias[head_];
    const float softplus = step > 20 ? step : log1pf(expf(step));
    const float decay = expf(-expf(p_.a_log[head_]) * softplus);
    float known = 0;
    for (std::int64_t k = 0; k < p_.key_dim; ++k) known += key_[k] * own_[k * kColumns];
    const float wanted = is_there() ? to_float(row_of(row)[2 * keys() + value()]) : 0;
    const float delta = (wanted - decay * known) * beta;
    float out = 0;
    for (std::int64_t k = 0; k < p_.key_dim; ++k) {
      const float next = decay * own_[k * kColumns] + key_[k] * delta;
      own_[k * kColumns] = next;
      out += query_[k] * next;
    }
    __syncthreads();  // the next row's keys come where this one's were
    return out;
  }

  __device__ void store(std::int64_t row, float value_of_row) const {
    if (!is_there()) return;
    from_float(value_of_row,
               static_cast<T*>(p_.out)[row * p_.value_heads * p_.value_dim + value()]);
  }

  __device__ void keep(std::int64_t row) const {
    if (column_ != 0) return;
    const std::int64_t at = row * 2 * p_.value_heads + head_;
    for (const std::int64_t gate : {at, at + p_.value_heads}) {
      static_cast<T*>(p_.kept)[gate] = static_cast<const T*>(p_.gates)[gate];
    }
  }

 private:
  __device__ std::int64_t keys() const { return p_.key_heads * p_.key_dim; }
  __device__ std::int64_t value() const { return head_ * p_.value_dim + column_; }

  __device__ const T* row_of(std::int64_t row) const {
    return static_cast<const T*>(p_.qkv) + row * (2 * keys() + p_.value_heads * p_.value_dim);
  }

  // Queries and keys, divided by their lengths, queries by the root of key_dim too.
  __device__ void load_keys(std::int64_t row) {
    const T* from = row_of(row) + p_.key_head_of(head_) * p_.key_dim;
    float squares[2] = {};
    for (std::int64_t k = threadIdx.x; k < p_.key_dim; k += kColumns) {
      query_[k] = to_float(from[k]);
      key_[k] = to_float(from[keys() + k]);
      squares[0] += query_[k] * query_[k];
      squares[1] += key_[k] * key_[k];
    }
    struct Sums {
      float of[kWarps][2];
    };
    Sums& sums = static_shared<Sums>();
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_lanes(squares[i]);
      if (threadIdx.x % kLanes == 0) sums.of[threadIdx.x / kLanes][i] = sum;
    }
    __syncthreads();
    float scales[2];
    for (int i = 0; i < 2; ++i) {
      float sum = kTiny;
      for (int warp = 0; warp < kWarps; ++warp) sum += sums.of[warp][i];
      scales[i] = 1 / sqrtf(sum);
    }
    scales[0] /= sqrtf(static_cast<float>(p_.key_dim));
    for (std::int64_t k = threadIdx.x; k < p_.key_dim; k += kColumns) {
      query_[k] *= scales[0];
      key_[k] *= scales[1];
    }
    __syncthreads();
  }

  const GatedDeltaParams& p_;
  float* const query_;
  float* const key_;
};

template <class T>
cudaError_t run(const GatedDeltaParams& p, cudaStream_t stream) {
  return walk_states<HeadColumns<T>>(p, p.value_heads, p.key_dim, p.value_dim, stream);
}

}  // namespace

cudaError_t gated_delta(const GatedDeltaParams& params, cudaStream_t stream) {
  if (params.walk.rows <= 0) return cudaSuccess;
  switch (params.dtype) {
    case DType::f32: return run<float>(params, stream);
    case DType::bf16: return run<bf16>(params, stream);
    case DType::f16: return run<f16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
