// paged_tree_attention: rows are written to the cache (attention_write.cu), tiles of queries attend,
// parts are combined.
#include <kernels.hpp>

#include "attention_launch.hpp"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kCombineWarps = 4;

// One warp a (row, head): the parts of its splits become the output.
template <class T>
__global__ void __launch_bounds__(kCombineWarps* kLanes)
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
    const bool wide = forced_tiles == AttentionTiles::chosen ? p.rows * group > 96 * p.requests
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

// Rows attend to the caches, which hold all that they see.
cudaError_t attend(const AttentionParams& p, void* workspace, cudaStream_t stream) {
  const Plan plan = plan_of(p);
  char* const memory = static_cast<char*>(workspace);
  const AttentionArgs args{
      .p = p,
      .group = static_cast<int>(p.heads / p.kv_heads),
      .splits = plan.splits,
      .partial_sums = reinterpret_cast<float*>(memory),
      .partial_peak =
          reinterpret_cast<float2*>(memory + (plan.keeps_parts() ? sums_bytes(p, plan.splits) : 0)),
  };
  if (plan.family == Family::prefix) return launch_prefix_attention(args, plan_prefix(p), stream);
  cudaError_t error;
  if (plan.family == Family::tensor || plan.family == Family::tensor_wide) {
    error = launch_tensor_attention(args, plan.family == Family::tensor_wide, stream);
  } else {
    error = launch_vector_attention(args, plan.family == Family::vector, stream);
  }
  if (error != cudaSuccess || plan.splits == 1) return error;
  switch (p.dtype) {
    case DType::f32: return combine<float>(args, stream);
    case DType::bf16: return combine<bf16>(args, stream);
    case DType::f16: return combine<f16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

bool is_served(const AttentionParams& p) {
  return p.head_dim >= 1 && p.head_dim <= 256 && p.kv_heads >= 1 && p.heads % p.kv_heads == 0;
}

// Where a rotated call keeps its queries, in front of what attention takes.
std::size_t queries_bytes(const AttentionParams& p) {
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype)) * p.rows * p.heads * p.head_dim;
  return static_cast<std::size_t>(divide_up(bytes, 256)) * 256;
}

AttentionParams with_queries(AttentionParams p, const void* queries) {
  p.q = queries;
  p.q_stride = p.heads * p.head_dim;
  return p;
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
  if (!is_served(p)) return cudaErrorInvalidValue;
  const cudaError_t error = launch_write(p, stream);
  if (error != cudaSuccess || p.requests <= 0) return error;
  return attend(p, workspace, stream);
}

std::size_t rotated_tree_attention_workspace(const AttentionParams& p) {
  if (p.rows <= 0) return 0;
  return queries_bytes(p) + paged_tree_attention_workspace(with_queries(p, nullptr));
}

cudaError_t rotated_tree_attention(const AttentionParams& p, const RotationParams& rotation,
                                   void* workspace, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  if (!is_served(p) || rotation.size % 2 != 0 || rotation.size > p.head_dim) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = launch_write_heads(p, rotation, workspace, stream);
  if (error != cudaSuccess || p.requests <= 0) return error;
  return attend(with_queries(p, workspace), static_cast<char*>(workspace) + queries_bytes(p),
                stream);
}

}  // namespace trtspec::cuda
