// The rows of attention: K and V go to their slots, turned before if they are to be.
#include <kernels.hpp>

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kWriteThreads = 128;
constexpr int kWriteWarps = kWriteThreads / kLanes;

// Copies `bytes`, a multiple of the unit, with the threads of a block; from null: zeros.
template <class Unit>
__device__ void copy_row(void* to, const void* from, std::int64_t bytes) {
  for (std::int64_t i = threadIdx.x; i < bytes / std::int64_t{sizeof(Unit)}; i += blockDim.x) {
    static_cast<Unit*>(to)[i] = from == nullptr ? Unit{} : static_cast<const Unit*>(from)[i];
  }
}

// The output of a padding row is zeros.
template <class Unit>
__device__ void clear_padding(const AttentionParams& p, std::int64_t t, std::int64_t element) {
  if (p.slot_mapping[t] >= 0 && t < p.query_start[p.requests]) return;
  const std::int64_t bytes = p.heads * p.head_dim * element;
  copy_row<Unit>(static_cast<char*>(p.out) + t * bytes, nullptr, bytes);
}

// One block a row: its K and V go to its slot.
template <class Unit>
__global__ void __launch_bounds__(kWriteThreads)
    write_rows(const __grid_constant__ AttentionParams p) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t slot = p.slot_mapping[t];
  const std::int64_t element = p.dtype == DType::f32 ? 4 : 2;
  if (slot >= 0 && p.k != nullptr) {
    const std::int64_t bytes = p.kv_heads * p.head_dim * element;
    copy_row<Unit>(static_cast<char*>(p.k_cache) + slot * bytes,
                   static_cast<const char*>(p.k) + t * p.k_stride * element, bytes);
    copy_row<Unit>(static_cast<char*>(p.v_cache) + slot * bytes,
                   static_cast<const char*>(p.v) + t * p.v_stride * element, bytes);
  }
  clear_padding<Unit>(p, t, element);
}

// The elements of a head, as they are or turned: in float, and rounded once.
template <class T>
struct Head {
  const T* from;
  const float* cos;  // null: as they are
  const float* sin;
  int pairs;
  bool interleaved;

  __device__ T operator[](int d) const {
    if (cos == nullptr || d >= 2 * pairs) return from[d];
    const int pair = interleaved ? d / 2 : d % pairs;
    const bool is_first = interleaved ? d % 2 == 0 : d < pairs;
    const int other = interleaved ? d ^ 1 : (is_first ? d + pairs : d - pairs);
    const float beside = to_float(from[other]) * sin[pair];
    const float turned = to_float(from[d]) * cos[pair] + (is_first ? -beside : beside);
    T rounded;
    from_float(turned, rounded);
    return rounded;
  }
};

// A head as 8 bits times the scale that is returned, by a warp; with the bits of the CPU's
// quantise_row.
template <class T>
__device__ float quantise_head(const Head<T>& head, int size, std::int8_t* to) {
  const int lane = threadIdx.x % kLanes;
  float most = 0.0f;
  bool is_finite = true;
  for (int d = lane; d < size; d += kLanes) {
    const float magnitude = fabsf(to_float(head[d]));
    is_finite = is_finite && magnitude < infinity();
    most = larger(most, magnitude);
  }
  most = largest_of_lanes(most);
  is_finite = __ballot_sync(kWarp, !is_finite) == 0;
  const float per_step = is_finite && most > 0.0f ? 127.0f / most : 0.0f;
  for (int d = lane; d < size; d += kLanes) {
    const float nearest = is_finite ? rintf(to_float(head[d]) * per_step) : 0.0f;
    to[d] = static_cast<std::int8_t>(larger(-127.0f, smaller(127.0f, nearest)));
  }
  return is_finite ? most / 127.0f : __uint_as_float(0x7fc00000u);
}

// One block a row, a warp a head: K, turned, and V go to its slot, in 8 bits if the caches are, and
// turned queries to `queries`. Without a rotation nothing turns, and queries stay where they are.
template <class T>
__global__ void __launch_bounds__(kWriteThreads)
    write_heads(const __grid_constant__ AttentionParams p,
                const __grid_constant__ RotationParams rotation, void* queries) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t slot = p.slot_mapping[t];
  const int lane = threadIdx.x % kLanes;
  const int size = static_cast<int>(p.head_dim);
  const int pairs = static_cast<int>(rotation.size / 2);
  const auto head_of = [&](const void* rows, std::int64_t stride, std::int64_t i, bool turns) {
    const std::int64_t at = turns && rotation.cos != nullptr ? t * pairs : 0;
    return Head<T>{static_cast<const T*>(rows) + t * stride + i * size,
                   turns && rotation.cos != nullptr ? rotation.cos + at : nullptr,
                   rotation.sin + at, pairs, rotation.interleaved};
  };
  if (slot >= 0) {
    const std::int64_t turned = rotation.cos == nullptr ? 0 : p.heads;
    const std::int64_t heads = turned + (p.k == nullptr ? 0 : 2 * p.kv_heads);
    for (std::int64_t i = threadIdx.x / kLanes; i < heads; i += kWriteWarps) {
      if (i < turned) {
        const Head<T> head = head_of(p.q, p.q_stride, i, true);
        T* const to = static_cast<T*>(queries) + (t * p.heads + i) * size;
        for (int d = lane; d < size; d += kLanes) to[d] = head[d];
        continue;
      }
      const bool is_key = i - turned < p.kv_heads;
      const std::int64_t own = i - turned - (is_key ? 0 : p.kv_heads);
      const Head<T> head =
          is_key ? head_of(p.k, p.k_stride, own, true) : head_of(p.v, p.v_stride, own, false);
      void* const cache = is_key ? p.k_cache : p.v_cache;
      const std::int64_t at = slot * p.kv_heads + own;
      if (p.k_scale == nullptr) {
        for (int d = lane; d < size; d += kLanes) static_cast<T*>(cache)[at * size + d] = head[d];
      } else {
        const float scale = quantise_head(head, size, static_cast<std::int8_t*>(cache) + at * size);
        if (lane == 0) (is_key ? p.k_scale : p.v_scale)[at] = scale;
      }
    }
  }
  clear_padding<std::uint16_t>(p, t, std::int64_t{sizeof(T)});
}

}  // namespace

cudaError_t launch_write_heads(const AttentionParams& p, const RotationParams& rotation,
                               void* queries, cudaStream_t stream) {
  const auto with = [&](auto kernel) {
    return launch(kernel, static_cast<unsigned>(p.rows), kWriteThreads, 0, stream, p, rotation,
                  queries);
  };
  switch (p.dtype) {
    case DType::f32: return with(write_heads<float>);
    case DType::bf16: return with(write_heads<bf16>);
    case DType::f16: return with(write_heads<f16>);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_write(const AttentionParams& p, cudaStream_t stream) {
  if (p.k_scale != nullptr) return launch_write_heads(p, {}, nullptr, stream);
  const std::int64_t element = static_cast<std::int64_t>(size_of(p.dtype));
  const auto whole = [&](std::int64_t elements) { return elements * element % 16 == 0; };
  const bool vectors = whole(p.kv_heads * p.head_dim) && whole(p.k_stride) && whole(p.v_stride) &&
                       aligned(p.k, 16) && aligned(p.v, 16) && aligned(p.k_cache, 16) &&
                       aligned(p.v_cache, 16) && aligned(p.out, 16);
  return launch(vectors ? write_rows<uint4> : write_rows<std::uint16_t>,
                static_cast<unsigned>(p.rows), kWriteThreads, 0, stream, p);
}

}  // namespace trtspec::cuda
