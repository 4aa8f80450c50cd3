// paged_tree_attention: rows are written to the cache, tiles of queries attend, parts are combined.
#include <kernels.hpp>

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kWriteThreads = 128;
constexpr unsigned kCombineWarps = 4;

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

// A head as 8 bits times the scale that is returned, by a warp; with the bits of the CPU's
// quantise_row.
template <class T>
__device__ float quantise_head(const T* from, int size, std::int8_t* to) {
  const int lane = threadIdx.x % kLanes;
  float most = 0.0f;
  bool is_finite = true;
  for (int d = lane; d < size; d += kLanes) {
    const float magnitude = fabsf(to_float(from[d]));
    is_finite = is_finite && magnitude < infinity();
    most = larger(most, magnitude);
  }
  most = largest_of_lanes(most);
  is_finite = __ballot_sync(kWarp, !is_finite) == 0;
  const float per_step = is_finite && most > 0.0f ? 127.0f / most : 0.0f;
  for (int d = lane; d < size; d += kLanes) {
    const float nearest = is_finite ? rintf(to_float(from[d]) * per_step) : 0.0f;
    to[d] = static_cast<std::int8_t>(larger(-127.0f, smaller(127.0f, nearest)));
  }
  return is_finite ? most / 127.0f : __uint_as_float(0x7fc00000u);
}

// One block a row, a warp a head: its K and V go to its slot in 8 bits.
template <class T>
__global__ void __launch_bounds__(kWriteThreads)
    write_rows_8bit(const __grid_constant__ AttentionParams p) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t slot = p.slot_mapping[t];
  if (slot >= 0 && p.k != nullptr) {
    for (std::int64_t i = threadIdx.x / kLanes; i < 2 * p.kv_heads; i += kWriteThreads / kLanes) {
      const bool is_key = i < p.kv_heads;
      const std::int64_t own = is_key ? i : i - p.kv_heads;
      const std::int64_t head = slot * p.kv_heads + own;
      const T* const row = is_key ? static_cast<const T*>(p.k) + t * p.k_stride
                                  : static_cast<const T*>(p.v) + t * p.v_stride;
      const float scale = quantise_head(
          row + own * p.head_dim, static_cast<int>(p.head_dim),
          static_cast<std::int8_t*>(is_key ? p.k_cache : p.v_cache) + head * p.head_dim);
      if (threadIdx.x % kLanes == 0) (is_key ? p.k_scale : p.v_scale)[head] = scale;
    }
  }
  clear_padding<std::uint16_t>(p, t, std::int64_t{sizeof(T)});
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

// One warp a (row, head): the parts of its splits become the output.
template <class T>
__global__ void __launch_bounds__(kCombineWarps * kLanes)
    combine_splits(const __grid_constant__ AttentionArgs args) {
  const AttentionParams& p = args.p;
  const std::int64_t head = std::int64_t{blockIdx.x} * kCombineWarps + threadIdx.x / kLanes;
  if (head >= p.query_start[p.requests] * p.heads) return;
  if (p.slot_mapping[head / p.heads] < 0) return;
  const int lane = threadIdx.x % kLanes;
  const float2* const parts = args.partial_peak + head * args.splits;
  float peak = -infinity();
  for (int s = 0; s < args.splits; ++s) peak = larger(peak, parts[s].x);
  float total = 0.0f;
  for (int s = 0; s < args.splits; ++s) total += rescale(parts[s].x, peak) * parts[s].y;
  for (std::int64_t d = lane; d < p.head_dim; d += kLanes) {
    float sum = 0.0f;
    for (int s = 0; s < args.splits; ++s) {
      const float factor = rescale(parts[s].x, peak);
      if (factor > 0.0f) {
        sum += factor * args.partial_sums[(head * args.splits + s) * p.head_dim + d];
      }
    }
    from_float(total == 0.0f ? 0.0f : sum / total, static_cast<T*>(p.out)[head * p.head_dim + d]);
  }
}

AttentionTiles forced_tiles = AttentionTiles::chosen;

enum class Family { vector, vector_any, tensor, tensor_wide, prefix };

// What serves a call, and into how many ranges its keys are divided.
struct Plan {
  Family family;
  int splits;

  bool keeps_parts() const { return splits > 1 || family == Family::prefix; }
};

bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

Plan plan_of(const AttentionParams& p) {
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t element = static_cast<std::int64_t>(size_of(p.dtype));
  const bool is_scaled = p.k_scale != nullptr;
  const std::uintptr_t unit = is_scaled ? 8 : 16;  // bytes of a cache that a thread reads at once
  const bool vectors = p.head_dim <= 128 && p.head_dim * element % 16 == 0 &&
                       aligned(p.k_cache, unit) && aligned(p.v_cache, unit);
  Family family = Family::vector_any;
  std::int64_t size = 4;
  if (p.dtype == DType::f32) {
    if (vectors && !is_scaled) family = Family::vector;
  } else if (vectors && aligned(p.q, 4) && p.q_stride % 2 == 0) {
    if (forced_tiles == AttentionTiles::prefix && group <= kMostPrefixGroup) {
      return {Family::prefix, plan_prefix(p).parts};
    }
    // Even a single query is faster here. Wide tiles read the cache less often, but want many
    // queries: up to six narrow ones are faster than two.
    const bool wide = forced_tiles == AttentionTiles::chosen
                          ? p.rows * group > 96 * p.requests
                          : forced_tiles == AttentionTiles::wide;
    family = wide ? Family::tensor_wide : Family::tensor;
    size = family == Family::tensor_wide ? 64 : 16;
  }
  // Enough blocks to keep two on each of the multiprocessors of a large GPU. A constant: the order
  // of sums shall not depend on the device.
  constexpr std::int64_t kWantedBlocks = 264;
  constexpr std::int64_t kMostSplits = 64;
  const std::int64_t tiles = larger(p.requests, divide_up(p.rows * group, size));
  const std::int64_t wanted = kWantedBlocks / (tiles * p.kv_heads);
  const std::int64_t longest = p.table_width * p.block_size / (kLeastTiles * kKeyTile);
  const std::int64_t splits = smaller(smaller(wanted, longest), kMostSplits);
  return {family, static_cast<int>(larger<std::int64_t>(splits, 1))};
}

std::size_t sums_bytes(const AttentionParams& p, int splits) {
  const std::int64_t floats = p.rows * p.heads * splits * p.head_dim;
  return static_cast<std::size_t>(divide_up(floats, 64)) * 64 * sizeof(float);
}

template <class T>
cudaError_t combine(const AttentionArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(divide_up(args.p.rows * args.p.heads, kCombineWarps));
  return launch(combine_splits<T>, blocks, kCombineWarps * kLanes, 0, stream, args);
}

cudaError_t write_8bit(const AttentionParams& p, cudaStream_t stream) {
  const auto with = [&](auto kernel) {
    return launch(kernel, static_cast<unsigned>(p.rows), kWriteThreads, 0, stream, p);
  };
  switch (p.dtype) {
    case DType::f32:
      return with(write_rows_8bit<float>);
    case DType::bf16:
      return with(write_rows_8bit<bf16>);
    case DType::f16:
      return with(write_rows_8bit<f16>);
  }
  return cudaErrorInvalidValue;
}

cudaError_t write(const AttentionParams& p, cudaStream_t stream) {
  if (p.k_scale != nullptr) return write_8bit(p, stream);
  const std::int64_t element = static_cast<std::int64_t>(size_of(p.dtype));
  const auto whole = [&](std::int64_t elements) { return elements * element % 16 == 0; };
  const bool vectors = whole(p.kv_heads * p.head_dim) && whole(p.k_stride) && whole(p.v_stride) &&
                       aligned(p.k, 16) && aligned(p.v, 16) && aligned(p.k_cache, 16) &&
                       aligned(p.v_cache, 16) && aligned(p.out, 16);
  return launch(vectors ? write_rows<uint4> : write_rows<std::uint16_t>,
                static_cast<unsigned>(p.rows), kWriteThreads, 0, stream, p);
}

}  // namespace

void force_attention_tiles(AttentionTiles tiles) { forced_tiles = tiles; }

std::size_t paged_tree_attention_workspace(const AttentionParams& p) {
  if (p.rows <= 0 || p.requests <= 0 || p.kv_heads <= 0) return 0;
  const Plan plan = plan_of(p);
  if (!plan.keeps_parts()) return 0;
  return sums_bytes(p, plan.splits) +
         static_cast<std::size_t>(p.rows * p.heads * plan.splits) * sizeof(float2);
}

cudaError_t paged_tree_attention(const AttentionParams& p, void* workspace, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  if (p.head_dim < 1 || p.head_dim > 256 || p.kv_heads < 1 || p.heads % p.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  cudaError_t error = write(p, stream);
  if (error != cudaSuccess || p.requests <= 0) return error;

  const Plan plan = plan_of(p);
  char* const memory = static_cast<char*>(workspace);
  const AttentionArgs args{
      .p = p,
      .group = static_cast<int>(p.heads / p.kv_heads),
      .splits = plan.splits,
      .partial_sums = reinterpret_cast<float*>(memory),
      .partial_peak = reinterpret_cast<float2*>(
          memory + (plan.keeps_parts() ? sums_bytes(p, plan.splits) : 0)),
  };
  if (plan.family == Family::prefix) return launch_prefix_attention(args, plan_prefix(p), stream);
  if (plan.family == Family::tensor || plan.family == Family::tensor_wide) {
    error = launch_tensor_attention(args, plan.family == Family::tensor_wide, stream);
  } else {
    error = launch_vector_attention(args, plan.family == Family::vector, stream);
  }
  if (error != cudaSuccess || plan.splits == 1) return error;
  switch (p.dtype) {
    case DType::f32:
      return combine<float>(args, stream);
    case DType::bf16:
      return combine<bf16>(args, stream);
    case DType::f16:
      return combine<f16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
