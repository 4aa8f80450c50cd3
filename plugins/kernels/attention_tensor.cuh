// Attention on tensor cores (mma.m16n8k16): tiles of 16 or 64 queries against tiles of 64 keys.
//
// Four warps share a tile of keys in shared memory. With 64 queries each warp has 16 of them and
// all the keys; with 16 queries (few rows: the cache is what takes time) each warp has all of them
// and 16 of the keys, and the warps' sums are merged in the end. K of the next tile is under way
// while P V is multiplied, V while Q K is.
#pragma once

#include "attention.cuh"

namespace trtspec::cuda {

inline constexpr int kTensorThreads = 128;

// T: bf16 or f16. C: of the caches: T, or int8 with scales. kDim: 64, 96 or 128, the head size
// rounded up. kRowWarps: 1 or 4.
template <class T, class C, int kDim, int kRowWarps>
struct TensorTile {
  static constexpr int kQueries = 16 * kRowWarps;
  static constexpr int kKeyWarps = 4 / kRowWarps;
  static constexpr int kKeys = kKeyTile / kKeyWarps;  // of a warp
  static constexpr int kStride = kDim + 8;            // rows of keys lie in different banks
  static constexpr std::size_t kTileBytes = sizeof(T) * kKeyTile * kStride;
  static constexpr std::size_t kMergeBytes =
      kKeyWarps == 1 ? 0 : sizeof(float) * kKeyWarps * kQueries * (kDim + 2);
  static constexpr bool kScaled = sizeof(C) == 1;
  static constexpr int kScales =
      kScaled ? kKeyTile : 0;  // of the keys of a tile, and of its values
  static constexpr std::size_t kSharedBytes = sizeof(std::int64_t) * 2 * kKeyTile +
                                              sizeof(float) * 2 * kScales +
                                              larger(2 * kTileBytes, kMergeBytes);
};

// Starts copying a tile of one cache; slot -1 gives zeros, as do elements beyond head_dim. Scales of
// 8 bits are there behind the next barrier.
template <class T, class C, int kDim>
__device__ inline void copy_keys(const AttentionParams& p, const C* cache,
                                 const float* cache_scales, int kv_head, const std::int64_t* slots,
                                 T* tile, float* scales) {
  constexpr int kChunks = kDim / 8;
  const int dim = static_cast<int>(p.head_dim);
#pragma unroll(sizeof(C) == 1 ? 2 : 4)  // those of 8 bits take registers on their way
  for (int i = threadIdx.x; i < kKeyTile * kChunks; i += kTensorThreads) {
    const int key = i / kChunks;
    const int d = i % kChunks * 8;
    const std::int64_t head = slots[key] * p.kv_heads + kv_head;
    const bool is_there = slots[key] >= 0;
    const bool valid = is_there && d < dim;
    copy_chunk(tile + key * (kDim + 8) + d, cache + (valid ? head * dim + d : 0), valid);
    if constexpr (sizeof(C) == 1) {
      if (d == 0) scales[key] = is_there ? cache_scales[head] : 0.0f;
    }
  }
  commit_copies();
}

template <class T, class C, int kDim, int kRowWarps>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_attention(const __grid_constant__ AttentionArgs args) {
  using Tile = TensorTile<T, C, kDim, kRowWarps>;
  constexpr int kStride = Tile::kStride;
  constexpr int kSteps = kDim / 16;  // of Q K
  constexpr int kKeyBlocks = Tile::kKeys / 8;
  constexpr int kDimBlocks = kDim / 8;
  auto& span_memory = static_shared<int[5]>();
  auto* const slots = reinterpret_cast<std::int64_t*>(dynamic_shared());  // [2][kKeyTile]
  float* const key_scales = reinterpret_cast<float*>(slots + 2 * kKeyTile);
  float* const value_scales = key_scales + Tile::kScales;
  T* const keys = reinterpret_cast<T*>(value_scales + Tile::kScales);  // [kKeyTile][kStride]
  T* const values = keys + kKeyTile * kStride;

  const AttentionParams& p = args.p;
  const QueryTile tile = find_tile(args, blockIdx.x, Tile::kQueries);
  if (tile.request < 0) return;
  const int kv_head = blockIdx.y;
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int group_row = lane / 4;  // rows group_row and group_row + 8 of the warp's 16
  const int pair = lane % 4 * 2;   // columns pair, pair + 1 of every 8
  const int warp_query = kRowWarps == 1 ? 0 : warp * 16;
  const int warp_key = kRowWarps == 1 ? warp * Tile::kKeys : 0;
  const KeySpan span = span_of(args, tile, span_memory);
  const KeyRange range = range_of(span, blockIdx.z, args.splits);

  // The queries, as fragments; rows that the tile does not have are zeros.
  std::uint32_t q[kSteps][4];
  RowView view[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp_query + group_row + 8 * half;
    const bool there = i < tile.queries;
    const QueryPlace place = place_of(args, tile, there ? i : 0, kv_head);
    view[half] =
        there ? view_of(p, tile.request, tile.first_row, place.row) : RowView{0, 0, 0, nullptr};
    const T* const from = static_cast<const T*>(p.q) +
                          (tile.first_row + std::int64_t{place.row}) * p.q_stride +
                          place.head * p.head_dim;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int d = step * 16 + part * 8 + pair;
        q[step][half + 2 * part] =
            there && d < p.head_dim ? *reinterpret_cast<const std::uint32_t*>(from + d) : 0;
      }
    }
  }

  float sums[kDimBlocks][4] = {};
  float peak[2] = {-infinity(), -infinity()};
  float total[2] = {0.0f, 0.0f};
  const float scale = p.scale * kLog2E;
  const float cap = p.soft_cap * kLog2E;

  const auto find_slots = [&](int from, std::int64_t* to) {
    if (threadIdx.x < kKeyTile) to[threadIdx.x] = slot_of(args, tile, span, from + threadIdx.x);
  };
  const auto copy_k = [&](const std::int64_t* from) {
    copy_keys<T, C, kDim>(p, static_cast<const C*>(p.k_cache), p.k_scale, kv_head, from, keys,
                          key_scales);
  };
  if (range.begin < range.end) {
    find_slots(range.begin, slots);
    __syncthreads();
    copy_k(slots);
    wait_copies();
    __syncthreads();
  }
  int parity = 0;
  for (int first = range.begin; first < range.end; first += kKeyTile, parity ^= 1) {
    copy_keys<T, C, kDim>(p, static_cast<const C*>(p.v_cache), p.v_scale, kv_head,
                          slots + parity * kKeyTile, values, value_scales);
    const bool more = first + kKeyTile < range.end;
    if (more) find_slots(first + kKeyTile, slots + (parity ^ 1) * kKeyTile);
    __syncwarp();  // lanes copied and looked up keys of their own

    // Scores. A matrix row of K is a key: as columns of K^T they need no transposing.
    float score[kKeyBlocks][4] = {};
#pragma unroll
    for (int block = 0; block < kKeyBlocks; block += 2) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int key = warp_key + block * 8 + lane / 16 * 8 + lane % 8;
        const Registers4 b = load_matrices(keys + key * kStride + step * 16 + lane / 8 % 2 * 8);
        multiply_add<T>(score[block], q[step], b.word[0], b.word[1]);
        multiply_add<T>(score[block + 1], q[step], b.word[2], b.word[3]);
      }
    }
    const bool all_seen = first >= span.all_begin && first + kKeyTile <= span.all_end;
    float highest[2] = {peak[0], peak[1]};
#pragma unroll
    for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp_key + block * 8 + pair + i % 2;
        const int position = first + key;
        if constexpr (Tile::kScaled) score[block][i] *= key_scales[key];
        const bool seen = all_seen || sees(view[i / 2], position, span.end);
        score[block][i] = seen ? capped(score[block][i] * scale, cap) : -infinity();
        highest[i / 2] = larger(highest[i / 2], score[block][i]);
      }
    }
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = largest_of_lanes(highest[half], 4);
      const float factor = rescale(peak[half], highest[half]);
      peak[half] = highest[half];
      shift[half] = highest[half] == -infinity() ? 0.0f : highest[half];
      total[half] *= factor;
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        sums[block][2 * half] *= factor;
        sums[block][2 * half + 1] *= factor;
      }
    }
#pragma unroll
    for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[block][i] = exp2f(score[block][i] - shift[i / 2]);
        total[i / 2] += score[block][i];
      }
    }

    wait_copies();
    __syncthreads();  // V is there, K is no longer needed
    if (more) copy_k(slots + (parity ^ 1) * kKeyTile);
    __syncwarp();
    if constexpr (Tile::kScaled) {  // the weights take the scales of V
#pragma unroll
      for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score[block][i] *= value_scales[warp_key + block * 8 + pair + i % 2];
        }
      }
    }
#pragma unroll
    for (int block = 0; block < kKeyBlocks; block += 2) {
      const std::uint32_t weights[4] = {pack<T>(score[block][0], score[block][1]),
                                        pack<T>(score[block][2], score[block][3]),
                                        pack<T>(score[block + 1][0], score[block + 1][1]),
                                        pack<T>(score[block + 1][2], score[block + 1][3])};
#pragma unroll
      for (int d = 0; d < kDimBlocks; d += 2) {
        const int key = warp_key + block * 8 + lane % 16;
        const Registers4 b =
            load_matrices_transposed(values + key * kStride + d * 8 + lane / 16 * 8);
        multiply_add<T>(sums[d], weights, b.word[0], b.word[1]);
        multiply_add<T>(sums[d + 1], weights, b.word[2], b.word[3]);
      }
    }
    wait_copies();
    __syncthreads();  // the next K is there, V is no longer needed
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) total[half] = sum_lanes(total[half], 4);

  // The warps that shared the queries merge through memory that keys and values no longer need.
  float* const merge = reinterpret_cast<float*>(keys);  // [kKeyWarps][16][kDim + 2]
  if constexpr (Tile::kKeyWarps > 1) {
    float* const mine = merge + warp * 16 * (kDim + 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* const row = mine + (group_row + i / 2 * 8) * (kDim + 2);
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        row[block * 8 + pair + i % 2] = sums[block][i];
      }
    }
    if (pair == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mine[(group_row + 8 * half) * (kDim + 2) + kDim] = peak[half];
        mine[(group_row + 8 * half) * (kDim + 2) + kDim + 1] = total[half];
      }
    }
    __syncthreads();
    for (int i = warp; i < tile.queries; i += 4) {
      float highest = -infinity();
      for (int w = 0; w < 4; ++w) {
        highest = larger(highest, merge[(w * 16 + i) * (kDim + 2) + kDim]);
      }
      float factor[4];
      float sum = 0.0f;
      for (int w = 0; w < 4; ++w) {
        const float* const row = merge + (w * 16 + i) * (kDim + 2);
        factor[w] = rescale(row[kDim], highest);
        sum += factor[w] * row[kDim + 1];
      }
      const QueryPlace place = place_of(args, tile, i, kv_head);
      for (int d = lane; d < p.head_dim; d += kLanes) {
        float value = 0.0f;
        for (int w = 0; w < 4; ++w) value += factor[w] * merge[(w * 16 + i) * (kDim + 2) + d];
        store_sum<T>(args, tile, place, d, value, highest, sum);
      }
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = warp_query + group_row + 8 * half;
      if (i >= tile.queries) continue;
      const QueryPlace place = place_of(args, tile, i, kv_head);
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          store_sum<T>(args, tile, place, block * 8 + pair + j, sums[block][2 * half + j],
                       peak[half], total[half]);
        }
      }
    }
  }
}

}  // namespace trtspec::cuda
