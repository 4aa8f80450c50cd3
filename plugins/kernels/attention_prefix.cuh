// Attention in which all queries of a request share what is read of its keys, and in which a row's
// bits follow from its query and the keys that it sees, in order.
//
// The keys that a row sees are counted: committed ones and causal ones by their cache position, a
// tree's behind them by their number among those that the row sees. Tiles of 32 and splits of whole
// tiles are cut by that number alone. A split is summed tile after tile, and splits are folded one
// after the other, by whichever blocks: sums that are put down and taken up again are floats as
// before, and a tile whose keys a row does not see leaves its sums as they were. (One product of the
// tensor cores is taken to be the same in every row of a tile.)
//
// prefix_attention takes all keys but the tail of a tree's rows: from the last whole tile that is
// committed on, each row of a tree sees other keys. finish_rows adds that tail, row by row, and folds.
#pragma once

#include "attention_tiles.cuh"

namespace trtspec::cuda {

inline constexpr int kFinishThreads = 128;
inline constexpr int kFinishWarps = kFinishThreads / kLanes;

// Where the parts of a (row, head) are: one for each split; or, where a block goes through all
// splits `in_order`, two: the fold of those that are complete, and the last one.
inline constexpr int kPartsInOrder = 2;

__device__ inline std::int64_t part_of(const AttentionArgs& args, bool in_order, std::int64_t head,
                                       int split, bool is_complete) {
  return head * args.splits + (in_order ? (is_complete ? 0 : 1) : split);
}

// Folding a part into those before it: the two peaks become one, and sums take these factors.
struct Fold {
  float peak, before, part;

  __device__ Fold(float peak_before, float peak_of_part)
      : peak(larger(peak_before, peak_of_part)),
        before(rescale(peak_before, peak)),
        part(rescale(peak_of_part, peak)) {}
  __device__ float operator()(float sum_before, float sum_of_part) const {
    return sum_before * before + sum_of_part * part;
  }
};

// Puts down what a warp has seen of a split.
template <int kDim>
__device__ inline void put_down(const AttentionArgs& args, bool in_order,
                                const Queries<kDim>& queries, const Seen<kDim>& seen, int split,
                                bool is_complete) {
  const int lane = threadIdx.x % kLanes;
  const bool folds = in_order && is_complete;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = queries.facts(half).head;
    const bool is_there = head >= 0;
    const std::int64_t part = part_of(args, in_order, is_there ? head : 0, split, is_complete);
    const float2 before = folds && is_there ? args.partial_peak[part] : float2{-infinity(), 0.0f};
    __syncwarp();  // neighbours share a query: they have read its peak
    if (!is_there) continue;
    const Fold fold(before.x, seen.peak[half]);
    const bool is_first = before.x == -infinity();
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      if (block * 8 >= args.p.head_dim) break;
      auto* const to = reinterpret_cast<float2*>(args.partial_sums + part * args.p.head_dim +
                                                 block * 8 + lane % 4 * 2);
      const float2 sums = is_first ? float2{0.0f, 0.0f} : *to;
      *to = {fold(sums.x, seen.sums[block][2 * half]),
             fold(sums.y, seen.sums[block][2 * half + 1])};
    }
    if (lane % 4 == 0) {
      args.partial_peak[part] = {fold.peak, fold(before.y, seen.total[half])};
      if (folds) args.partial_peak[part + 1] = {-infinity(), 0.0f};
    }
  }
}

// Takes up what was put down of a split that is not complete.
template <int kDim>
__device__ inline void take_up(const AttentionArgs& args, bool in_order,
                               const Queries<kDim>& queries, Seen<kDim>& seen, int split) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = queries.facts(half).head;
    if (head < 0) continue;
    const std::int64_t part = part_of(args, in_order, head, split, false);
    const float2 before = args.partial_peak[part];
    if (before.x == -infinity()) continue;
    seen.peak[half] = before.x;
    seen.total[half] = before.y;
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      if (block * 8 >= args.p.head_dim) break;
      const float2 sums = *reinterpret_cast<const float2*>(
          args.partial_sums + part * args.p.head_dim + block * 8 + threadIdx.x % 4 * 2);
      seen.sums[block][2 * half] = sums.x;
      seen.sums[block][2 * half + 1] = sums.y;
    }
  }
}

// Adds the keys begin .. end - 1 to what the queries of each warp have seen, and puts that down where
// a split ends; begin is the first key of a tile. `slot_at` is the slot of a key, -1: zeros. All
// threads of the block call it. Of kStages tiles one is multiplied while the others are under way:
// more hide more of the memory's latency, and leave room for fewer blocks.
template <class T, class C, int kDim, int kStages, class SlotAt>
__device__ __forceinline__ void add_keys(const AttentionArgs& args, bool in_order, int kv_head,
                                         int begin, int end, const Queries<kDim>& queries,
                                         Seen<kDim>& seen, const SlotAt& slot_at) {
  using Tile = Stage<T, C, kDim>;
  constexpr int kChunks = kDim / 8;
  constexpr int kAhead = (kStages - 1) * kPrefixTile;
  auto* const stages = reinterpret_cast<Tile*>(dynamic_shared());
  const AttentionParams& p = args.p;
  const int dim = static_cast<int>(p.head_dim);

  // A tile's slots are looked up while those before it are copied: the tables are memory, too.
  const auto look_up = [&](int first) {
    const int key = first + static_cast<int>(threadIdx.x) % kLanes;
    return key < end ? slot_at(key) : -1;
  };
  int slot = look_up(begin);
  const auto copy = [&](int first, Tile& to) {
    if (first < end) {
#pragma unroll 4
      for (int i = threadIdx.x; i < kPrefixTile * kChunks; i += blockDim.x) {
        const int key = i / kChunks;
        const int d = i % kChunks * 8;
        const int from = __shfl_sync(kWarp, slot, key);
        const bool valid = from >= 0 && d < dim;
        const std::int64_t head = valid ? std::int64_t{from} * p.kv_heads + kv_head : 0;
        const std::int64_t element = valid ? head * dim + d : 0;
        copy_chunk(to.keys + key * Tile::kStride + d, static_cast<const C*>(p.k_cache) + element,
                   valid);
        copy_chunk(to.values + key * Tile::kStride + d, static_cast<const C*>(p.v_cache) + element,
                   valid);
        if constexpr (sizeof(C) == 1) {
          if (d == 0) {
            to.key_scales[key] = valid ? p.k_scale[head] : 0.0f;
            to.value_scales[key] = valid ? p.v_scale[head] : 0.0f;
          }
        }
      }
      slot = look_up(first + kPrefixTile);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(begin + i * kPrefixTile, stages[i]);
  int split = split_of(begin);
  int stage = 0;
  for (int first = begin; first < end; first += kPrefixTile) {
    wait_copies_but<kStages - 2>();
    __syncthreads();  // the tile is there, and nobody reads the one before it any more
    copy(first + kAhead, stages[stage == 0 ? kStages - 1 : stage - 1]);
    __syncwarp();
    if (first < queries.any_end) {  // others would change nothing
      add_tile<T, C>(p, queries, stages[stage], first, seen);
    }
    const bool is_complete = first + kPrefixTile == split_begin(split + 1);
    if (is_complete || first + kPrefixTile >= end) {
      put_down(args, in_order, queries, seen, split, is_complete);
      seen.clear();
      ++split;
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

// The slot of a cache position.
__device__ inline int slot_of_position(const AttentionParams& p, int request, int position) {
  const auto block_size = static_cast<unsigned>(p.block_size);
  const auto at = static_cast<unsigned>(position);
  const auto block =
      static_cast<unsigned>(p.block_tables[request * p.table_width + at / block_size]);
  return static_cast<int>(block * block_size + at % block_size);
}

// The keys of a request that all of its rows count alike: of a tree, the whole committed tiles.
__device__ inline int counted_alike(const AttentionParams& p, int request) {
  return p.is_tree[request] ? p.context_lens[request] / kPrefixTile * kPrefixTile : 0x7fffffff;
}

inline constexpr int kPrefixStages = 3;

// A block is some queries of a request, one kv head, and one split or, `in_order`, all of them.
template <class T, class C, int kDim>
__global__ void __launch_bounds__(kMostRowWarps* kLanes, 2)
    prefix_attention(const __grid_constant__ AttentionArgs args, bool in_order) {
  const AttentionParams& p = args.p;
  const QueryTile tile = find_tile(args, blockIdx.x, static_cast<int>(blockDim.x) / 2);
  if (tile.request < 0) return;
  const int kv_head = blockIdx.y;
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int limit = counted_alike(p, tile.request);

  // What some row of the tile sees; every warp finds it for itself.
  int begin = 0x7fffffff;
  int end = 0;
  const int last = (tile.query + tile.queries - 1) / args.group;
  for (int row = tile.query / args.group + lane; row <= last; row += kLanes) {
    const RowView view = view_of(p, tile.request, tile.first_row, row);
    if (view.begin >= view.end) continue;
    begin = smaller(begin, view.begin);
    end = larger(end, view.end);
  }
  begin = -largest_of_lanes(-begin);
  end = smaller(largest_of_lanes(end), limit);
  const auto slot_at = [&, begin](int key) {
    return key < begin ? -1 : slot_of_position(p, tile.request, key);
  };

  const Queries<kDim> queries = load_queries<T, kDim>(args, tile, kv_head, warp, limit);
  if (in_order && lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = queries.facts(half).head;
      if (head < 0) continue;
      for (int i = 0; i < kPartsInOrder; ++i) {
        args.partial_peak[std::int64_t{head} * args.splits + i] = {-infinity(), 0.0f};
      }
    }
  }
  int from = begin / kPrefixTile * kPrefixTile;
  if (!in_order) {
    from = larger(from, split_begin(blockIdx.z));
    end = smaller(end, split_begin(blockIdx.z + 1));
  }
  if (from >= end) return;
  Seen<kDim> seen;
  seen.clear();
  __syncwarp();
  add_keys<T, C, kDim, kPrefixStages>(args, in_order, kv_head, from, end, queries, seen, slot_at);
}

inline constexpr int kTailStages = 2;  // a tail has a tile or two

// A block is a row and the heads of one kv head: the tail of a tree's row, and the fold of all parts.
template <class T, class C, int kDim>
__global__ void __launch_bounds__(kFinishThreads)
    finish_rows(const __grid_constant__ AttentionArgs args, bool in_order) {
  const AttentionParams& p = args.p;
  const QueryTile tile = find_tile(args, blockIdx.x, args.group);
  if (tile.request < 0) return;
  const int kv_head = blockIdx.y;
  const int row = tile.query / args.group;
  const std::int64_t t = tile.first_row + row;
  if (p.slot_mapping[t] < 0) return;
  const int warp = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const RowView view = view_of(p, tile.request, tile.first_row, row);
  int length = view.end;
  if (view.mask != nullptr) {
    for (int i = 0; i < p.mask_words; ++i) length += __popcll(view.mask[i]);
    const int from = counted_alike(p, tile.request);
    if (view.begin < length && from < length) {
      // The row's keys are numbered on behind what is committed.
      const auto slot_at = [&](int key) {
        if (key < view.begin) return -1;
        if (key < view.context) return slot_of_position(p, tile.request, key);
        int left = key - view.context;
        int word = 0;
        while (left >= __popcll(view.mask[word])) left -= __popcll(view.mask[word++]);
        std::uint64_t bits = view.mask[word];
        for (; left > 0; --left) bits &= bits - 1;
        const int bit = __ffsll(static_cast<long long>(bits)) - 1;
        return slot_of_position(p, tile.request, view.context + word * 64 + bit);
      };
      Queries<kDim> queries = load_queries<T, kDim>(args, tile, kv_head, warp, length);
      Seen<kDim> seen;
      seen.clear();
      const int split = split_of(from);
      if (larger(view.begin, split_begin(split)) < from) {
        take_up(args, in_order, queries, seen, split);
      }
      __syncwarp();
      add_keys<T, C, kDim, kTailStages>(args, in_order, kv_head, from, length, queries, seen,
                                        slot_at);
    }
  }
  __syncthreads();  // the tail's parts are there

  const bool is_blind = view.begin >= length;
  const int first_part = in_order || is_blind ? 0 : split_of(view.begin);
  const int last_part = is_blind ? -1 : in_order ? kPartsInOrder - 1 : split_of(length - 1);
  const int d = lane * 4;
  if (d >= p.head_dim) return;
  for (int i = warp; i < args.group; i += kFinishWarps) {
    const std::int64_t head = t * p.heads + std::int64_t{kv_head} * args.group + i;
    float4 sums{0.0f, 0.0f, 0.0f, 0.0f};
    float peak = -infinity();
    float total = 0.0f;
#pragma unroll 4
    for (int part = first_part; part <= last_part; ++part) {
      const float2 of_part = args.partial_peak[head * args.splits + part];
      if (of_part.x == -infinity()) continue;
      const float4 more = *reinterpret_cast<const float4*>(
          args.partial_sums + (head * args.splits + part) * p.head_dim + d);
      const Fold fold(peak, of_part.x);
      sums = {fold(sums.x, more.x), fold(sums.y, more.y), fold(sums.z, more.z),
              fold(sums.w, more.w)};
      total = fold(total, of_part.y);
      peak = fold.peak;
    }
    T* const out = static_cast<T*>(p.out) + head * p.head_dim + d;
    from_float(total == 0.0f ? 0.0f : sums.x / total, out[0]);
    from_float(total == 0.0f ? 0.0f : sums.y / total, out[1]);
    from_float(total == 0.0f ? 0.0f : sums.z / total, out[2]);
    from_float(total == 0.0f ? 0.0f : sums.w / total, out[3]);
  }
}

}  // namespace trtspec::cuda
