// Growing a dynamic tree: candidates into the pool, the beam of the next depth, the tree that is
// kept. A candidate's place is the number of those that come before it: pools are small.
#include <kernels.hpp>

#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct Candidates {
  TreePool pool;
  int begin;
  int lanes;
  int branching;
};

__global__ void __launch_bounds__(kThreads)
    append(const __grid_constant__ Candidates c, const std::int64_t* tokens, const float* logprobs,
           const std::int32_t* parent_index, const float* parent_scores) {
  const std::int64_t b = blockIdx.x;
  const int count = c.lanes * c.branching;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const std::int64_t parent = b * c.lanes + i / c.branching;
    const std::int64_t to = b * c.pool.size + c.begin + i;
    // Rounding may lift a certain child's logprob above 0; it would then outrank its parent.
    const float gain = smaller(logprobs[b * count + i], 0.0f);
    c.pool.tokens[to] = tokens[b * count + i];
    c.pool.parents[to] = parent_index == nullptr ? -1 : parent_index[parent];
    c.pool.scores[to] = parent_scores == nullptr ? gain : parent_scores[parent] + gain;
  }
}

// How many of `count` scores come before the i-th: higher ones, and equal ones of lower index.
__device__ int place_among(const float* scores, int count, int i) {
  const float mine = scores[i];
  int place = 0;
  for (int j = 0; j < i; ++j) place += scores[j] >= mine;
  for (int j = i + 1; j < count; ++j) place += scores[j] > mine;
  return place;
}

__device__ float* copy_scores(const TreePool& pool, std::int64_t b, int begin, int count) {
  float* const scores = reinterpret_cast<float*>(dynamic_shared());
  for (int i = threadIdx.x; i < count; i += kThreads) {
    scores[i] = pool.scores[b * pool.size + begin + i];
  }
  __syncthreads();
  return scores;
}

__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ Candidates c, int first_bit, int words,
           const std::int64_t* parent_ancestors, const __grid_constant__ TreeBeam beam) {
  const std::int64_t b = blockIdx.x;
  const int count = c.lanes * c.branching;
  const float* const scores = copy_scores(c.pool, b, c.begin, count);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = place_among(scores, count, i);
    if (place >= beam.width) continue;
    const std::int64_t to = b * beam.width + place;
    const int lane = i / c.branching;
    beam.tokens[to] = c.pool.tokens[b * c.pool.size + c.begin + i];
    beam.index[to] = c.begin + i;
    beam.lane[to] = lane;
    beam.scores[to] = scores[i];
    const int bit = first_bit + place;
    for (int w = 0; w < words; ++w) {
      const std::int64_t above =
          parent_ancestors == nullptr ? 0 : parent_ancestors[(b * c.lanes + lane) * words + w];
      const std::int64_t own = w == bit / 64 ? std::int64_t{1} << (bit % 64) : 0;
      beam.ancestors[to * words + w] = above | own;
    }
  }
}

struct Kept {
  std::int64_t* tokens;
  std::int32_t* parents;
  float* scores;
  std::int64_t* tree_mask;
  int nodes;
  int words;
};

__global__ void __launch_bounds__(kThreads)
    keep(const __grid_constant__ TreePool pool, const __grid_constant__ Kept kept) {
  const std::int64_t b = blockIdx.x;
  const int size = static_cast<int>(pool.size);
  const float* const scores = copy_scores(pool, b, 0, size);
  int* const node_of = reinterpret_cast<int*>(dynamic_shared()) + size;  // -1: not kept
  int* const above = node_of + size;  // the parent among the kept, of each node
  const auto chosen = [&](int i) { return node_of[i] >= 0; };
  for (int i = threadIdx.x; i < size; i += kThreads) {
    node_of[i] = place_among(scores, size, i) < kept.nodes ? i : -1;
  }
  __syncthreads();
  // A warp numbers the chosen ones.
  if (threadIdx.x < kLanes) {
    int before = 0;
    for (int base = 0; base < size; base += kLanes) {
      const int i = base + threadIdx.x;
      const bool mine = i < size && chosen(i);
      const unsigned all = __ballot_sync(kWarp, mine);
      if (mine) node_of[i] = before + __popc(all & ((1u << threadIdx.x) - 1));
      before += __popc(all);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += kThreads) {
    if (!chosen(i)) continue;
    const std::int64_t from = b * pool.size + i;
    const int node = node_of[i];
    const std::int64_t to = b * kept.nodes + node;
    const int parent = pool.parents[from] < 0 ? -1 : node_of[pool.parents[from]];
    above[node] = parent;
    kept.tokens[to] = pool.tokens[from];
    kept.parents[to] = parent;
    kept.scores[to] = scores[i];
  }
  if (kept.tree_mask == nullptr) return;
  __syncthreads();
  std::int64_t* const mask = kept.tree_mask + b * (kept.nodes + 1) * kept.words;
  for (int i = threadIdx.x; i < (kept.nodes + 1) * kept.words; i += kThreads) {
    const int word = i % kept.words;
    std::int64_t bits = word == 0 ? 1 : 0;  // the root
    for (int node = i / kept.words - 1; node >= 0; node = above[node]) {
      const int row = node + 1;
      if (row / 64 == word) bits |= std::int64_t{1} << (row % 64);
    }
    mask[i] = bits;
  }
}

bool fits(const TreePool& pool, std::int64_t begin, std::int64_t count) {
  return pool.size <= kMaxPool && begin >= 0 && begin + count <= pool.size;
}

Candidates candidates(const TreePool& pool, std::int64_t begin, std::int64_t lanes,
                      std::int64_t branching) {
  return {pool, static_cast<int>(begin), static_cast<int>(lanes), static_cast<int>(branching)};
}

}  // namespace

cudaError_t append_candidates(const TreePool& pool, std::int64_t begin, std::int64_t lanes,
                              std::int64_t branching, const std::int64_t* tokens,
                              const float* logprobs, const std::int32_t* parent_index,
                              const float* parent_scores, cudaStream_t stream) {
  if (pool.requests <= 0) return cudaSuccess;
  if (!fits(pool, begin, lanes * branching)) return cudaErrorInvalidValue;
  return launch(append, static_cast<unsigned>(pool.requests), kThreads, 0, stream,
                candidates(pool, begin, lanes, branching), tokens, logprobs, parent_index,
                parent_scores);
}

cudaError_t expand_tree(const TreePool& pool, std::int64_t begin, std::int64_t lanes,
                        std::int64_t branching, std::int64_t first_bit, std::int64_t mask_words,
                        const std::int64_t* parent_ancestors, const TreeBeam& beam,
                        cudaStream_t stream) {
  if (pool.requests <= 0) return cudaSuccess;
  const std::int64_t count = lanes * branching;
  if (!fits(pool, begin, count) || beam.width > count ||
      first_bit + beam.width > 64 * mask_words) {
    return cudaErrorInvalidValue;
  }
  return launch(expand, static_cast<unsigned>(pool.requests), kThreads,
                static_cast<std::size_t>(count) * sizeof(float), stream,
                candidates(pool, begin, lanes, branching), static_cast<int>(first_bit),
                static_cast<int>(mask_words), parent_ancestors, beam);
}

cudaError_t keep_best(const TreePool& pool, std::int64_t nodes, std::int64_t* tokens,
                      std::int32_t* parents, float* scores, std::int64_t* tree_mask,
                      std::int64_t mask_words, cudaStream_t stream) {
  if (pool.requests <= 0) return cudaSuccess;
  if (!fits(pool, 0, nodes) || (tree_mask != nullptr && nodes + 1 > 64 * mask_words)) {
    return cudaErrorInvalidValue;
  }
  const Kept kept{tokens, parents,           scores,
                  tree_mask, static_cast<int>(nodes), static_cast<int>(mask_words)};
  const std::size_t shared = static_cast<std::size_t>(2 * pool.size + nodes) * sizeof(int);
  return launch(keep, static_cast<unsigned>(pool.requests), kThreads, shared, stream, pool, kept);
}

}  // namespace trtspec::cuda
