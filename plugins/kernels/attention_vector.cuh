// Attention without tensor cores: few queries at a time, in float. Serves float32, and head sizes
// and addresses that the tensor cores' tiles do not fit.
//
// Some neighbouring lanes share a key, each with a slice of its elements; every such team of lanes
// goes through keys of its own with sums of its own, all of which are merged in the end. Nothing
// but registers is used on the way, so that many loads are under way at once.
#pragma once

#include "attention.cuh"

namespace trtspec::cuda {

inline constexpr int kVectorThreads = 128;
inline constexpr int kVectorWarps = kVectorThreads / kLanes;
inline constexpr int kVectorQueries = 4;

// How the lanes of a team share a key of at most kDim floats, each with 16 bytes; kDim 0: of any type
// C and head size up to 256, a warp a key, each lane with every 32nd element.
template <class C, int kDim>
struct Slice {
  static constexpr bool kAny = kDim == 0;
  static constexpr int kElements = kAny ? 8 : 4;
  static constexpr int kTeam = kAny ? 32 : kDim / kElements;
  static constexpr int kAhead = kAny ? 2 : 4;  // keys of a team that are loaded together
  static_assert(kAny || sizeof(C) == 4, "tensor cores serve the shorter types");
  static_assert(kTeam <= kLanes && (kTeam & (kTeam - 1)) == 0);

  // The index of a lane's element i.
  __device__ static int element(int lane, int i) {
    return kAny ? lane + kLanes * i : lane * kElements + i;
  }

  // The bits of a lane's elements of a key, as floats.
  struct Piece {
    std::uint32_t word[kElements];
  };

  __device__ static Piece load(const C* from, float scale, int lane, int dim, bool there) {
    Piece piece{};
    if constexpr (kAny) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int d = element(lane, i);
        piece.word[i] = there && d < dim ? __float_as_uint(cached_value(from[d], scale)) : 0;
      }
    } else if (there && lane * kElements < dim) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + lane * kElements);
      piece = {bits.x, bits.y, bits.z, bits.w};
    }
    return piece;
  }

  __device__ static float value(const Piece& piece, int i) {
    return __uint_as_float(piece.word[i]);
  }
};

// C: of the caches: T, or int8 with scales.
template <class T, class C, int kDim>
__global__ void __launch_bounds__(kVectorThreads, 3)
    vector_attention(const __grid_constant__ AttentionArgs args) {
  using S = Slice<C, kDim>;
  constexpr bool kScaled = sizeof(C) == 1;
  constexpr int kQ = kVectorQueries;
  constexpr int kTeams = kLanes / S::kTeam;  // of a warp
  constexpr int kStep = kTeams * kVectorWarps * S::kAhead;
  static_assert(kKeyTile % kStep == 0);  // no step reaches into another block's range
  auto& span_memory = static_shared<int[5]>();
  auto& warp_peak = static_shared<float2[kVectorWarps][kQ]>();
  float* const warp_sums = reinterpret_cast<float*>(dynamic_shared());  // [warps][kQ][head_dim]

  const AttentionParams& p = args.p;
  const QueryTile tile = find_tile(args, blockIdx.x, kQ);
  if (tile.request < 0) return;
  const int kv_head = blockIdx.y;
  const int dim = static_cast<int>(p.head_dim);
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % S::kTeam;
  const int team = threadIdx.x / S::kTeam;
  const KeySpan span = span_of(args, tile, span_memory);
  const KeyRange range = range_of(span, blockIdx.z, args.splits);

  float q[kQ][S::kElements];
  float sums[kQ][S::kElements] = {};
  float peak[kQ];
  float total[kQ] = {};
  RowView view[kQ];
#pragma unroll
  for (int i = 0; i < kQ; ++i) {
    const bool there = i < tile.queries;
    const QueryPlace place = place_of(args, tile, there ? i : 0, kv_head);
    view[i] = view_of(p, tile.request, tile.first_row, place.row);
    if (!there) view[i] = {0, 0, 0, nullptr};
    peak[i] = -infinity();
    const T* const from = static_cast<const T*>(p.q) +
                          (tile.first_row + std::int64_t{place.row}) * p.q_stride +
                          place.head * p.head_dim;
#pragma unroll
    for (int e = 0; e < S::kElements; ++e) {
      const int d = S::element(lane, e);
      q[i][e] = there && d < dim ? to_float(from[d]) * (p.scale * kLog2E) : 0.0f;
    }
  }

  const float cap = p.soft_cap * kLog2E;
  for (int base = range.begin; base < range.end; base += kStep) {
    typename S::Piece k[S::kAhead];
    typename S::Piece v[S::kAhead];
    int position[S::kAhead];
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) {
      position[a] = base + team * S::kAhead + a;
      const std::int64_t slot =
          position[a] < range.end ? slot_of(args, tile, span, position[a]) : -1;
      const std::int64_t head = larger<std::int64_t>(slot, 0) * p.kv_heads + kv_head;
      const auto load = [&](const void* cache, const float* scales) {
        return S::load(static_cast<const C*>(cache) + head * dim, kScaled ? scales[head] : 1.0f,
                       lane, dim, slot >= 0);
      };
      k[a] = load(p.k_cache, p.k_scale);
      v[a] = load(p.v_cache, p.v_scale);
    }
    float weight[kQ][S::kAhead];  // scores at first
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) {
      float dot[kQ] = {};
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) {
        const float value = S::value(k[a], e);
#pragma unroll
        for (int i = 0; i < kQ; ++i) dot[i] += q[i][e] * value;
      }
#pragma unroll
      for (int i = 0; i < kQ; ++i) {
        dot[i] = sum_lanes(dot[i], S::kTeam);
        weight[i][a] = sees(view[i], position[a], range.end) ? capped(dot[i], cap) : -infinity();
      }
    }
#pragma unroll
    for (int i = 0; i < kQ; ++i) {
      float highest = peak[i];
#pragma unroll
      for (int a = 0; a < S::kAhead; ++a) highest = larger(highest, weight[i][a]);
      const float factor = rescale(peak[i], highest);
      peak[i] = highest;
      total[i] *= factor;
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) sums[i][e] *= factor;
#pragma unroll
      for (int a = 0; a < S::kAhead; ++a) {
        weight[i][a] = rescale(weight[i][a], highest);
        total[i] += weight[i][a];
      }
    }
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) {
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) {
        const float value = S::value(v[a], e);
#pragma unroll
        for (int i = 0; i < kQ; ++i) sums[i][e] += weight[i][a] * value;
      }
    }
  }

  // Teams of a warp, then the warps.
#pragma unroll
  for (int i = 0; i < kQ; ++i) {
    float highest = peak[i];
    for (int lanes = S::kTeam; lanes < kLanes; lanes *= 2) {
      highest = larger(highest, __shfl_xor_sync(kWarp, highest, lanes));
    }
    const float factor = rescale(peak[i], highest);
    total[i] *= factor;
    for (int lanes = S::kTeam; lanes < kLanes; lanes *= 2) {
      total[i] += __shfl_xor_sync(kWarp, total[i], lanes);
    }
    if (threadIdx.x % kLanes == 0) warp_peak[warp][i] = {highest, total[i]};
#pragma unroll
    for (int e = 0; e < S::kElements; ++e) {
      float sum = sums[i][e] * factor;
      for (int lanes = S::kTeam; lanes < kLanes; lanes *= 2) {
        sum += __shfl_xor_sync(kWarp, sum, lanes);
      }
      const int d = S::element(lane, e);
      if (threadIdx.x % kLanes < S::kTeam && d < dim) {
        warp_sums[(warp * kQ + i) * dim + d] = sum;
      }
    }
  }
  __syncthreads();
  for (int i = 0; i < tile.queries; ++i) {
    float highest = -infinity();
    for (int w = 0; w < kVectorWarps; ++w) highest = larger(highest, warp_peak[w][i].x);
    float factor[kVectorWarps];
    float sum = 0.0f;
    for (int w = 0; w < kVectorWarps; ++w) {
      factor[w] = rescale(warp_peak[w][i].x, highest);
      sum += factor[w] * warp_peak[w][i].y;
    }
    const QueryPlace place = place_of(args, tile, i, kv_head);
    for (int d = threadIdx.x; d < dim; d += kVectorThreads) {
      float value = 0.0f;
      for (int w = 0; w < kVectorWarps; ++w) {
        value += factor[w] * warp_sums[(w * kQ + i) * dim + d];
      }
      store_sum<T>(args, tile, place, d, value, highest, sum);
    }
  }
}

}  // namespace trtspec::cuda
