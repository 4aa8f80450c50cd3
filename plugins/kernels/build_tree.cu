// Growing draft trees: candidates into the pool, the rows that are fed next, the tree that is kept.
// A candidate's place is the number of those that come before it.
#include <kernels.hpp>

#include "best.cuh"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Scores that a block keeps at hand; more are read where they lie.
constexpr std::int64_t kNearScores = 8192;

// Rounding may lift a certain child's gain above 0, and it would then outrank its parent.
__device__ float at_most_zero(float gain) {
  if (gain < 0.0f) return gain;
  return gain >= 0.0f ? 0.0f : -infinity();
}

__device__ void append(const TreePool& pool, const TreeChildren& children, std::int64_t b) {
  const int lanes = static_cast<int>(children.lanes);
  const int branching = static_cast<int>(children.branching);
  const int count = lanes * branching;
  const std::int64_t first = b * pool.size;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const std::int64_t from = b * count + i, to = first + children.begin + i;
    const int parent = children.above == nullptr ? -1 : children.above[b * lanes + i / branching];
    const float gain = at_most_zero(children.gains[from]);
    pool.tokens[to] = children.tokens[from];
    pool.parents[to] = parent;
    pool.scores[to] = parent < 0 ? gain : pool.scores[first + parent] + gain;
  }
  __syncthreads();
}

// The scores, in `memory` if there are few at most.
__device__ const float* near(const float* scores, int count, int most, float* memory) {
  if (most > kNearScores) return scores;
  for (int i = threadIdx.x; i < count; i += kThreads) memory[i] = scores[i];
  __syncthreads();
  return memory;
}

std::size_t near_bytes(std::int64_t most) {
  return static_cast<std::size_t>(most > kNearScores ? 0 : most) * sizeof(float);
}

__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ TreePool pool, const __grid_constant__ TreeChildren children,
           const __grid_constant__ TreeBeam beam) {
  const std::int64_t b = blockIdx.x;
  append(pool, children, b);
  const int count = static_cast<int>(children.count());
  const int width = static_cast<int>(beam.width);
  const std::int64_t first = b * pool.size + children.begin;
  const auto feed = [&](int place, int child) {
    const std::int64_t to = b * width + place, lane = child / children.branching;
    beam.tokens[to] = pool.tokens[first + child];
    beam.index[to] = static_cast<std::int32_t>(children.begin) + child;
    beam.lanes[to] = lane;
    const std::int64_t bit = beam.first_bit + place;
    for (std::int64_t w = 0; w < beam.words; ++w) {
      const std::int64_t above =
          beam.seen_above == nullptr
              ? 0
              : beam.seen_above[(b * children.lanes + lane) * beam.words + w];
      const std::uint64_t own = w == bit / 64 ? std::uint64_t{1} << (bit % 64) : 0;
      beam.seen[to * beam.words + w] = above | static_cast<std::int64_t>(own);
    }
  };
  if (beam.chosen != nullptr) {
    for (int i = threadIdx.x; i < width; i += kThreads) feed(i, static_cast<int>(beam.chosen[i]));
    return;
  }
  const float* const scores =
      near(pool.scores + first, count, count, reinterpret_cast<float*>(dynamic_shared()));
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = place_among(scores, count, i);
    if (place < width) feed(place, i);
  }
}

// The last of the best, which tells them apart from the others.
struct Cut {
  float score;
  int index;
};

// Writes the `nodes` best of `count` scores, in their order. `kept` is in shared memory.
__device__ void best_in_order(const float* scores, int count, int nodes, int* kept) {
  Cut& cut = static_shared<Cut>();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    if (place_among(scores, count, i) == nodes - 1) cut = {scores[i], i};
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {  // a warp numbers them
    const Cut last = cut;
    int before = 0;
    for (int base = 0; base < count; base += kLanes) {
      const int i = base + static_cast<int>(threadIdx.x);
      const float score = i < count ? scores[i] : -infinity();
      const bool mine =
          i < count && (score > last.score || (score == last.score && i <= last.index));
      const unsigned all = __ballot_sync(kWarp, mine);
      if (mine) kept[before + __popc(all & ((1u << threadIdx.x) - 1))] = i;
      before += __popc(all);
    }
  }
  __syncthreads();
}

// Where a candidate is among `nodes` kept ones, which rise and hold it; -1 stays -1.
__device__ int node_of(const int* kept, int nodes, int candidate) {
  if (candidate < 0) return -1;
  int low = 0;
  for (int high = nodes; low < high;) {
    const int middle = (low + high) / 2;
    if (kept[middle] < candidate) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    keep(const __grid_constant__ TreePool pool, const __grid_constant__ TreeChildren children,
         const __grid_constant__ KeptTree tree) {
  const std::int64_t b = blockIdx.x, first = b * pool.size;
  append(pool, children, b);
  const int size = static_cast<int>(pool.size), nodes = static_cast<int>(tree.nodes);
  int* const kept = reinterpret_cast<int*>(dynamic_shared());
  if (tree.chosen != nullptr) {
    for (int n = threadIdx.x; n < nodes; n += kThreads) kept[n] = static_cast<int>(tree.chosen[n]);
    __syncthreads();
  } else {
    float* const memory = reinterpret_cast<float*>(kept + nodes);
    best_in_order(near(pool.scores + first, size, size, memory), size, nodes, kept);
  }
  for (int n = threadIdx.x; n < nodes; n += kThreads) {
    const std::int64_t from = first + kept[n], to = b * nodes + n;
    tree.tokens[to] = pool.tokens[from];
    tree.parents[to] = node_of(kept, nodes, pool.parents[from]);
    tree.scores[to] = pool.scores[from];
  }
}

// A block's part of the workspace holds the scores of a depth's candidates; then of the nodes of all
// depths the scores, and which candidate each is.
__global__ void __launch_bounds__(kThreads)
    marginals(const __grid_constant__ MarginalTrees m, int candidates, float* workspace) {
  const std::int64_t b = blockIdx.x;
  float* const found = workspace + b * 3 * candidates;
  float* const scores = found + candidates;
  int* const candidate_of = reinterpret_cast<int*>(scores + candidates);
  const int nodes = static_cast<int>(m.nodes), depths = static_cast<int>(m.depths);
  const auto width_of = [&](int depth) {
    const int count = m.starts[depth + 1] - m.starts[depth];
    return m.keep_all ? count : smaller(count, nodes);
  };
  int first = 0;
  for (int depth = 0, above = -1; depth < depths; ++depth) {
    const float* const gains = m.gains + (b * depths + depth) * m.count;
    const int begin = m.starts[depth], count = m.starts[depth + 1] - begin, width = width_of(depth);
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const float gain = at_most_zero(gains[m.ranks[begin + i]]);
      const int parent = above + m.lanes[begin + i];
      found[i] = parent < 0 ? gain : scores[parent] + gain;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const int place = m.keep_all ? i : place_among(found, count, i);
      if (place >= width) continue;
      scores[first + place] = found[i];
      candidate_of[first + place] = begin + i;
    }
    __syncthreads();
    above = first;
    first += width;
  }
  int* const kept = reinterpret_cast<int*>(dynamic_shared());
  if (m.keep_all) {
    for (int n = threadIdx.x; n < nodes; n += kThreads) kept[n] = n;
    __syncthreads();
  } else {
    float* const memory = reinterpret_cast<float*>(kept + nodes);
    best_in_order(near(scores, first, candidates, memory), first, nodes, kept);
  }
  for (int n = threadIdx.x; n < nodes; n += kThreads) {
    const int candidate = candidate_of[kept[n]];
    int depth = 0, above = -1;
    for (int next = 0; candidate >= m.starts[depth + 1]; ++depth) {
      above = next;
      next += width_of(depth);
    }
    const std::int64_t to = b * nodes + n;
    m.out_tokens[to] = m.tokens[(b * depths + depth) * m.count + m.ranks[candidate]];
    m.out_parents[to] = node_of(kept, nodes, above + m.lanes[candidate]);
    m.out_scores[to] = scores[kept[n]];
  }
}

}  // namespace

cudaError_t expand_tree(const TreePool& pool, const TreeChildren& children, const TreeBeam& beam,
                        cudaStream_t stream) {
  if (pool.requests <= 0) return cudaSuccess;
  const std::size_t shared = beam.chosen == nullptr ? near_bytes(children.count()) : 0;
  return launch(expand, static_cast<unsigned>(pool.requests), kThreads, shared, stream, pool,
                children, beam);
}

cudaError_t keep_best(const TreePool& pool, const TreeChildren& children, const KeptTree& tree,
                      cudaStream_t stream) {
  if (pool.requests <= 0) return cudaSuccess;
  const std::size_t shared = static_cast<std::size_t>(tree.nodes) * sizeof(int) +
                             (tree.chosen == nullptr ? near_bytes(pool.size) : 0);
  return launch(keep, static_cast<unsigned>(pool.requests), kThreads, shared, stream, pool,
                children, tree);
}

std::size_t marginal_trees_workspace(const MarginalTrees& params, std::int64_t candidates) {
  return static_cast<std::size_t>(3 * params.requests * candidates) * sizeof(float);
}

cudaError_t marginal_trees(const MarginalTrees& params, std::int64_t candidates, void* workspace,
                           cudaStream_t stream) {
  if (params.requests <= 0) return cudaSuccess;
  const std::size_t shared = static_cast<std::size_t>(params.nodes) * sizeof(int) +
                             (params.keep_all ? 0 : near_bytes(candidates));
  return launch(marginals, static_cast<unsigned>(params.requests), kThreads, shared, stream, params,
                static_cast<int>(candidates), static_cast<float*>(workspace));
}

}  // namespace trtspec::cuda
