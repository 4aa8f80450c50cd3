// What attention_prefix.cuh multiplies: splits and tiles of the keys that a row sees, by their number,
// and the queries of a warp against a tile.
#pragma once

#include "attention.cuh"

namespace trtspec::cuda {

inline constexpr int kPrefixTile = 32;   // keys of a tile: one for each lane to look up
inline constexpr int kMostRowWarps = 6;  // of a block, with 16 queries each

// The first 16 splits have 256 keys, the next 16 have 512, and so on. Small ones give a GPU enough
// blocks when a context is short; ones that grow with the context keep the parts few: they cost
// memory, and time for whoever folds them.
inline constexpr int kSplitKeys = 256;
inline constexpr int kSplitsOfSize = 16;

__host__ __device__ constexpr int split_begin(int split) {
  const int doublings = split / kSplitsOfSize;
  const int units = ((kSplitsOfSize + split % kSplitsOfSize) << doublings) - kSplitsOfSize;
  return units * kSplitKeys;
}

// The split of a key by its number.
__host__ __device__ constexpr int split_of(int key) {
  const int units = key / kSplitKeys + kSplitsOfSize;
  int doublings = 0;
  while (units >> doublings >= 2 * kSplitsOfSize) ++doublings;
  return doublings * kSplitsOfSize + (units >> doublings) - kSplitsOfSize;
}

// A tile of keys and values in shared memory; rows lie in different banks.
template <class T, class C, int kDim>
struct alignas(16) Stage {
  static constexpr int kStride = kDim + 8;
  T keys[kPrefixTile * kStride];
  T values[kPrefixTile * kStride];
  float key_scales[sizeof(C) == 1 ? kPrefixTile : 1];
  float value_scales[sizeof(C) == 1 ? kPrefixTile : 1];
};

// What is seldom asked about a query, which lies in shared memory.
struct QueryFacts {
  int head;        // of the call; -1: there is none
  int begin, end;  // the keys that it sees, by number
};

// The 16 queries of a warp, as fragments: a lane has those of rows lane / 4 and lane / 4 + 8.
template <int kDim>
struct Queries {
  std::uint32_t bits[kDim / 16][4];
  int all_begin, all_end;  // all of them see these
  int any_end;             // none of them sees these and those behind

  __device__ static QueryFacts& facts(int half) {
    const int warp = threadIdx.x / kLanes;
    const int row = threadIdx.x % kLanes / 4 + 8 * half;
    return static_shared<QueryFacts[kMostRowWarps][16]>()[warp][row];
  }
};

// What the queries of a warp have seen: of each, the sum of exp2(score - peak) v and of the
// weights, the columns pair, pair + 1 of every 8 on a lane.
template <int kDim>
struct Seen {
  float sums[kDim / 8][4];
  float peak[2], total[2];

  __device__ void clear() {
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      sums[block][0] = sums[block][1] = sums[block][2] = sums[block][3] = 0.0f;
    }
    peak[0] = peak[1] = -infinity();
    total[0] = total[1] = 0.0f;
  }
};

// `end` cuts what the rows see in front of keys that the caller takes apart from the others.
template <class T, int kDim>
__device__ inline Queries<kDim> load_queries(const AttentionArgs& args, const QueryTile& tile,
                                             int kv_head, int warp, int end) {
  const AttentionParams& p = args.p;
  const int lane = threadIdx.x % kLanes;
  Queries<kDim> queries;
  int begin[2];
  int seen_end[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = warp * 16 + lane / 4 + 8 * half;
    const bool is_there = i < tile.queries;  // others see as much as the first one
    const QueryPlace place = place_of(args, tile, is_there ? i : 0, kv_head);
    const RowView view = view_of(p, tile.request, tile.first_row, place.row);
    begin[half] = view.begin;
    seen_end[half] = view.mask == nullptr ? smaller(view.end, end) : end;
    if (lane % 4 == 0) {
      const int head = is_there ? static_cast<int>(head_index(args, tile, place)) : -1;
      queries.facts(half) = {head, begin[half], seen_end[half]};
    }
    const T* const from = static_cast<const T*>(p.q) +
                          (tile.first_row + std::int64_t{place.row}) * p.q_stride +
                          place.head * p.head_dim;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int d = step * 16 + part * 8 + lane % 4 * 2;
        queries.bits[step][half + 2 * part] =
            is_there && d < p.head_dim ? *reinterpret_cast<const std::uint32_t*>(from + d) : 0;
      }
    }
  }
  queries.all_begin = largest_of_lanes(larger(begin[0], begin[1]));
  queries.all_end = -largest_of_lanes(-smaller(seen_end[0], seen_end[1]));
  const int any_end = largest_of_lanes(larger(seen_end[0], seen_end[1]));
  queries.any_end = warp * 16 < tile.queries ? any_end : 0;
  __syncwarp();  // the facts are there
  return queries;
}

// Adds the keys `first` .. first + 31, which are in `stage`, to what the queries of a warp have seen.
template <class T, class C, int kDim>
__device__ __forceinline__ void add_tile(const AttentionParams& p, const Queries<kDim>& queries,
                                         const Stage<T, C, kDim>& stage, int first,
                                         Seen<kDim>& seen) {
  constexpr int kStride = Stage<T, C, kDim>::kStride;
  constexpr int kKeyBlocks = kPrefixTile / 8;
  constexpr bool kScaled = sizeof(C) == 1;
  const int lane = threadIdx.x % kLanes;
  const int pair = lane % 4 * 2;
  const float scale = p.scale * kLog2E;
  const float cap = p.soft_cap * kLog2E;

  // A matrix row of K is a key: as columns of K^T they need no transposing.
  float score[kKeyBlocks][4] = {};
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int block = 0; block < kKeyBlocks; block += 2) {
      const int key = block * 8 + lane / 16 * 8 + lane % 8;
      const Registers4 b = load_matrices(stage.keys + key * kStride + step * 16 + lane / 8 % 2 * 8);
      multiply_add<T>(score[block], queries.bits[step], b.word[0], b.word[1]);
      multiply_add<T>(score[block + 1], queries.bits[step], b.word[2], b.word[3]);
    }
  }
#pragma unroll
  for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kScaled) score[block][i] *= stage.key_scales[block * 8 + pair + i % 2];
      score[block][i] = capped(score[block][i] * scale, cap);
    }
  }
  if (first < queries.all_begin || first + kPrefixTile > queries.all_end) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const QueryFacts facts = queries.facts(half);
#pragma unroll
      for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first + block * 8 + pair + i;
          if (key < facts.begin || key >= facts.end) score[block][2 * half + i] = -infinity();
        }
      }
    }
  }
  float highest[2] = {seen.peak[0], seen.peak[1]};
#pragma unroll
  for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) highest[i / 2] = larger(highest[i / 2], score[block][i]);
  }
  float factor[2];
  float total[2] = {0.0f, 0.0f};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    highest[half] = largest_of_lanes(highest[half], 4);
    factor[half] = rescale(seen.peak[half], highest[half]);
    seen.peak[half] = highest[half];
    const float shift = highest[half] == -infinity() ? 0.0f : highest[half];
#pragma unroll
    for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        score[block][i] = exp2f(score[block][i] - shift);
        total[half] += score[block][i];
        if constexpr (kScaled) score[block][i] *= stage.value_scales[block * 8 + pair + i % 2];
      }
    }
  }
  // Mostly no peak rises, and times 1 changes nothing.
  if (__ballot_sync(kWarp, factor[0] != 1.0f || factor[1] != 1.0f) != 0) {
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      seen.sums[block][0] *= factor[0];
      seen.sums[block][1] *= factor[0];
      seen.sums[block][2] *= factor[1];
      seen.sums[block][3] *= factor[1];
    }
  }
#pragma unroll
  for (int block = 0; block < kKeyBlocks; block += 2) {
    const std::uint32_t weights[4] = {pack<T>(score[block][0], score[block][1]),
                                      pack<T>(score[block][2], score[block][3]),
                                      pack<T>(score[block + 1][0], score[block + 1][1]),
                                      pack<T>(score[block + 1][2], score[block + 1][3])};
#pragma unroll
    for (int d = 0; d < kDim / 8; d += 2) {
      const int key = block * 8 + lane % 16;
      const Registers4 b =
          load_matrices_transposed(stage.values + key * kStride + d * 8 + lane / 16 * 8);
      multiply_add<T>(seen.sums[d], weights, b.word[0], b.word[1]);
      multiply_add<T>(seen.sums[d + 1], weights, b.word[2], b.word[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    seen.total[half] = seen.total[half] * factor[half] + sum_lanes(total[half], 4);
  }
}

}  // namespace trtspec::cuda
