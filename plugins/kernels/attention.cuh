// What the attention kernels share: how rows are divided among blocks, and what a row sees.
//
// A request's rows and the query heads of one kv head are packed: query q of a request is its row
// q / group, head q % group. Blocks take tiles of neighbouring queries, one kv head and one of
// `splits` ranges of the keys, so that all queries of a tile share what is read of the cache.
#pragma once

#include <trtspec/attention.hpp>

#include "device.cuh"

namespace trtspec::cuda {

inline constexpr int kKeyTile = 64;    // keys are divided among blocks in multiples of this,
inline constexpr int kLeastTiles = 2;  // and not into less: parts cost memory traffic too

struct AttentionArgs {
  AttentionParams p;
  int group;             // query heads of a kv head
  int splits;            // 1: blocks write the output themselves
  float* partial_sums;   // [rows, heads, splits, head_dim]: sums of exp2(score - peak) v
  float2* partial_peak;  // [rows, heads, splits]: peak, and the sum of exp2(score - peak)
};

// The queries of a block.
struct QueryTile {
  int request;    // -1: none
  int first_row;  // of the request, in the call
  int query;      // the first one, in the request
  int queries;
};

// Tile `tile` of the requests, each cut into tiles of at most `size` queries. All lanes of a warp
// call it together.
__device__ inline QueryTile find_tile(const AttentionArgs& args, int tile, int size) {
  const int lane = threadIdx.x % kLanes;
  const int requests = static_cast<int>(args.p.requests);
  int before = 0;  // tiles of the requests before those looked at
  for (int base = 0; base < requests; base += kLanes) {
    const int b = base + lane;
    const int first = b < requests ? args.p.query_start[b] : 0;
    const int queries = b < requests ? (args.p.query_start[b + 1] - first) * args.group : 0;
    const int tiles = (queries + size - 1) / size;
    int upto = tiles;
    for (int delta = 1; delta < kLanes; delta *= 2) {
      const int other = __shfl_up_sync(kWarp, upto, delta);
      if (lane >= delta) upto += other;
    }
    const unsigned behind = __ballot_sync(kWarp, before + upto > tile);
    if (behind != 0) {
      const int owner = __ffs(behind) - 1;
      const int query = (tile - before - __shfl_sync(kWarp, upto - tiles, owner)) * size;
      const int total = __shfl_sync(kWarp, queries, owner);
      return {base + owner, __shfl_sync(kWarp, first, owner), query, smaller(size, total - query)};
    }
    before += __shfl_sync(kWarp, upto, kLanes - 1);
  }
  return {-1, 0, 0, 0};
}

// The most tiles there can be, whatever the lengths of the requests.
inline unsigned most_tiles(const AttentionParams& p, std::int64_t size) {
  return static_cast<unsigned>(p.rows * (p.heads / p.kv_heads) / size + p.requests);
}

// What a row sees: cache positions begin .. end - 1, and tree bits from position `context` on.
struct RowView {
  int begin;
  int end;
  int context;
  const std::int64_t* mask;  // null: none

  __device__ bool in_tree(int position) const {
    if (mask == nullptr || position < context) return false;
    const int bit = position - context;
    return (mask[bit / 64] >> (bit % 64) & 1) != 0;
  }
};

// Row `index` of request b.
__device__ inline RowView view_of(const AttentionParams& p, int b, int first_row, int index) {
  const int t = first_row + index;
  const int context = p.context_lens[b];
  if (p.slot_mapping[t] < 0) return {0, 0, context, nullptr};
  const bool tree = p.is_tree[b];
  RowView view{0, tree ? context : context + index + 1, context,
               tree ? p.tree_mask + t * p.mask_words : nullptr};
  if (p.sliding_window > 0) {
    const std::int64_t from = p.positions[t] - p.sliding_window + 1;
    view.begin = static_cast<int>(
        smaller<std::int64_t>(larger<std::int64_t>(from, 0), std::int64_t{view.end}));
  }
  return view;
}

// `limit`: no position from there on is seen by any row of the tile.
__device__ inline bool sees(const RowView& view, int position, int limit) {
  if (position < view.end) return position >= view.begin;
  return position < limit && view.in_tree(position);
}

// The keys that some row of a tile sees.
struct KeySpan {
  int begin, end;          // no key outside is seen
  int dense_end;           // in [begin, dense_end) every key is written; beyond, those in a tree
  int all_begin, all_end;  // every row sees all of these
};

// All threads of the block call it; `shared` holds 5 ints.
__device__ inline KeySpan span_of(const AttentionArgs& args, const QueryTile& tile, int* shared) {
  const AttentionParams& p = args.p;
  const int first = tile.query / args.group;
  const int last = (tile.query + tile.queries - 1) / args.group;
  const int context = p.context_lens[tile.request];
  if (threadIdx.x == 0) {
    shared[0] = shared[4] = 0x7fffffff;
    shared[1] = shared[2] = shared[3] = 0;
  }
  __syncthreads();
  const int words = p.is_tree[tile.request] ? static_cast<int>(p.mask_words) : 0;
  for (int row = first + threadIdx.x; row <= last; row += blockDim.x) {
    const RowView view = view_of(p, tile.request, tile.first_row, row);
    if (view.begin < view.end) {
      atomicMin(&shared[0], view.begin);
      atomicMax(&shared[1], view.end);
      atomicMax(&shared[2], view.end);
    }
    atomicMax(&shared[3], view.begin);
    atomicMin(&shared[4], view.end);
  }
  for (int i = threadIdx.x; i < (last - first + 1) * words; i += blockDim.x) {
    const std::int64_t t = tile.first_row + first + i / words;
    const std::int64_t bits = p.tree_mask[t * p.mask_words + i % words];
    if (bits == 0 || p.slot_mapping[t] < 0) continue;
    atomicMin(&shared[0], context);
    atomicMax(&shared[1], context + i % words * 64 + 64 - __clzll(bits));
  }
  __syncthreads();
  return {smaller(shared[0], shared[1]), shared[1], shared[2], shared[3], shared[4]};
}

// The flat slot of a cache position, or -1 if no row of the tile sees it: such a key may never have
// been written, nor its block exist.
__device__ inline std::int64_t slot_of(const AttentionArgs& args, const QueryTile& tile,
                                       const KeySpan& span, int position) {
  if (position < span.begin || position >= span.end) return -1;
  const AttentionParams& p = args.p;
  if (position >= span.dense_end) {
    const int bit = position - p.context_lens[tile.request];
    if (bit < 0) return -1;
    const int first = tile.first_row + tile.query / args.group;
    const int last = tile.first_row + (tile.query + tile.queries - 1) / args.group;
    bool seen = false;
    for (int t = first; t <= last; ++t) {
      const std::int64_t word = p.tree_mask[t * p.mask_words + bit / 64];
      seen = seen || ((word >> (bit % 64) & 1) != 0 && p.slot_mapping[t] >= 0);
    }
    if (!seen) return -1;
  }
  const auto block_size = static_cast<unsigned>(p.block_size);
  const unsigned column = static_cast<unsigned>(position) / block_size;
  const std::int64_t block = p.block_tables[tile.request * p.table_width + column];
  return block * block_size + static_cast<unsigned>(position) % block_size;
}

// This block's part of the keys: whole tiles from span.begin on. The last blocks may get none.
struct KeyRange {
  int begin, end;
};

__device__ inline KeyRange range_of(const KeySpan& span, int split, int splits) {
  const int tiles = (span.end - span.begin + kKeyTile - 1) / kKeyTile;
  const int each = larger((tiles + splits - 1) / splits, kLeastTiles) * kKeyTile;
  const int begin = smaller(span.begin + split * each, span.end);
  return {begin, smaller(begin + each, span.end)};
}

// Which row and head of the call query i of a tile is.
struct QueryPlace {
  int row;   // in the request
  int head;  // of all query heads
};

__device__ inline QueryPlace place_of(const AttentionArgs& args, const QueryTile& tile, int i,
                                      int kv_head) {
  const int query = tile.query + i;
  return {query / args.group, kv_head * args.group + query % args.group};
}

// Where query i's output, or its part of it, begins: in heads of the call.
__device__ inline std::int64_t head_index(const AttentionArgs& args, const QueryTile& tile,
                                          const QueryPlace& place) {
  return (tile.first_row + std::int64_t{place.row}) * args.p.heads + place.head;
}

// An element of a cache as a float: itself, or 8 bits times the scale of their head.
template <class T>
__device__ __forceinline__ float cached_value(T x, float) {
  return to_float(x);
}
__device__ __forceinline__ float cached_value(std::int8_t x, float scale) {
  return static_cast<float>(x) * scale;
}

// Eight elements of a cache to shared memory as T, or zeros. Those of type T are there once waited
// for; those of 8 bits, which T has exactly, behind the next barrier.
template <class T>
__device__ __forceinline__ void copy_chunk(T* to, const T* from, bool valid) {
  copy_async(to, from, valid);
}
template <class T>
__device__ __forceinline__ void copy_chunk(T* to, const std::int8_t* from, bool valid) {
  uint2 bytes{0, 0};
  if (valid) bytes = *reinterpret_cast<const uint2*>(from);
  const auto pair = [](unsigned bits, int shift) {
    return pack<T>(static_cast<float>(static_cast<std::int8_t>(bits >> shift & 255)),
                   static_cast<float>(static_cast<std::int8_t>(bits >> (shift + 8) & 255)));
  };
  *reinterpret_cast<uint4*>(to) = {pair(bytes.x, 0), pair(bytes.x, 16), pair(bytes.y, 0),
                                   pair(bytes.y, 16)};
}

inline constexpr float kLog2E = 1.44269504f;

// exp2(a - b), 0 where nothing was seen.
__device__ __forceinline__ float rescale(float a, float b) {
  return a == -infinity() ? 0.0f : exp2f(a - b);
}

// A score (in units of log2 e) under a soft cap in the same units; 0: none.
__device__ __forceinline__ float capped(float score, float cap) {
  return cap > 0.0f ? cap * tanhf(score / cap) : score;
}

// Element d of a query's result: `sum` of exp2(score - peak) v, where the weights sum to `total`.
// The output itself if the keys are not split, else this split's part of it.
template <class T>
__device__ __forceinline__ void store_sum(const AttentionArgs& args, const QueryTile& tile,
                                          const QueryPlace& place, int d, float sum, float peak,
                                          float total) {
  if (d >= args.p.head_dim) return;
  const std::int64_t head = head_index(args, tile, place);
  if (args.splits == 1) {
    from_float(total == 0.0f ? 0.0f : sum / total,  // NaN stays
               static_cast<T*>(args.p.out)[head * args.p.head_dim + d]);
    return;
  }
  const std::int64_t part = head * args.splits + blockIdx.z;
  if (total != 0.0f) args.partial_sums[part * args.p.head_dim + d] = sum;
  if (d == 0) args.partial_peak[part] = {peak, total};
}

}  // namespace trtspec::cuda
