// pack_verify and pack_rollout: what the calls of a step are fed, from what a device keeps of its
// requests.
#include <kernels.hpp>

#include "best.cuh"
#include "launch.hpp"
#include "resident.cuh"

namespace trtspec::cuda {
namespace {

constexpr unsigned kVerifyThreads = 512;  // a warp counts the rows of an item at a time
constexpr unsigned kRolloutThreads = 256;

// Rows of a call, and those whose logits are wanted.
struct Counts {
  std::int64_t rows;
  std::int64_t logits;
};

// Those of the items before the block's, and of all items.
struct Totals {
  Counts before;
  Counts all;

  __device__ void add(std::int64_t item, const Counts& more) {
    all.rows += more.rows;
    all.logits += more.logits;
    if (item < blockIdx.x) {
      before.rows += more.rows;
      before.logits += more.logits;
    }
  }
};

// The sum of what the threads of the block counted.
template <unsigned kThreads>
__device__ Totals sum_block(const Totals& mine) {
  auto& warps = static_shared<Totals[kThreads / kLanes]>();
  const Totals sum{{sum_lanes(mine.before.rows), sum_lanes(mine.before.logits)},
                   {sum_lanes(mine.all.rows), sum_lanes(mine.all.logits)}};
  if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = sum;
  __syncthreads();
  Totals total{};
  for (const Totals& warp : warps) {
    total.before.rows += warp.before.rows;
    total.before.logits += warp.before.logits;
    total.all.rows += warp.all.rows;
    total.all.logits += warp.all.logits;
  }
  return total;
}

// A row of a call, in a cache's blocks. The place of a row in its request decides its slot, that in
// its text its position.
struct Row {
  std::int64_t token;
  std::int64_t position;
  std::int64_t place;
  std::int64_t adapter;
};

__device__ void write_row(const RowArrays& to, const CacheLayout& layout, std::int64_t row,
                          const std::int32_t* blocks, const Row& r) {
  to.input_ids[row] = r.token;
  to.positions[row] = r.position;
  to.slot_mapping[row] = slot_of(blocks, layout.tokens_per_block, r.place);
  if (to.adapters != nullptr) to.adapters[row] = static_cast<std::int32_t>(r.adapter);
}

__device__ void clear_mask(const RowArrays& to, const CacheLayout& layout, std::int64_t row) {
  std::int64_t* const mask = to.tree_mask + row * layout.mask_words;
  for (std::int64_t w = 0; w < layout.mask_words; ++w) mask[w] = 0;
}

// What belongs to the block's item but its rows. blocks: null for one that has none.
__device__ void write_request(const RowArrays& to, const CacheLayout& layout,
                              const std::int32_t* blocks, std::int64_t context, bool is_tree,
                              std::int64_t end) {
  const std::int64_t b = blockIdx.x, width = layout.blocks_per_sequence;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    to.block_tables[b * width + i] = blocks == nullptr ? -1 : blocks[i];
  }
  if (threadIdx.x != 0) return;
  if (b == 0) to.query_start[0] = 0;
  to.query_start[b + 1] = static_cast<std::int32_t>(end);
  to.context_lens[b] = static_cast<std::int32_t>(context);
  to.is_tree[b] = is_tree;
}

// The rows behind those of all items: each block writes some.
__device__ void pad_rows(const RowArrays& to, const CacheLayout& layout, std::int64_t begin,
                         std::int64_t end) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t row = begin + std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < end;
       row += step) {
    to.input_ids[row] = to.positions[row] = 0;
    to.slot_mapping[row] = -1;
    if (to.adapters != nullptr) to.adapters[row] = -1;
    clear_mask(to, layout, row);
  }
}

// The sampling values of row `at`, which emits output token `output` of a place; zeros for -1.
__device__ void write_columns(const SamplingArrays& to, std::int64_t at,
                              const ResidentRequests& all, std::int64_t place,
                              std::int64_t output) {
  const bool is_used = place >= 0;
  const RequestState* const state = all.states + (is_used ? place : 0);
  const float* const filters = all.filters + (is_used ? 3 * place : 0);
  to.temperature[at] = is_used ? filters[0] : 0.0f;
  to.top_p[at] = is_used ? filters[1] : 0.0f;
  to.min_p[at] = is_used ? filters[2] : 0.0f;
  to.top_k[at] = is_used ? static_cast<std::int32_t>(state->top_k) : 0;
  to.seed[at] = is_used ? state->seed : 0;
  to.sample_index[at] = is_used ? state->sample_index : 0;
  to.output_index[at] = is_used ? output : 0;
}

// -- the target's call ----------------------------------------------------------------------------

// The draft of an item.
struct Draft {
  const std::int64_t* tokens;
  const std::int32_t* parents;
  const float* scores;
  int nodes;  // 0: it has none
  std::int64_t place;
  std::int64_t max_depth;
  std::int64_t max_nodes;
};

__device__ Draft draft_of(const PackVerifyParams& p, std::int64_t i, const StepItem& item,
                          const RequestState& state) {
  const std::int64_t first = i * p.num_nodes;
  const int nodes = item.rolls_out(state, p.behind) ? static_cast<int>(p.num_nodes) : 0;
  return {p.draft_tokens + first,
          p.draft_parents + first,
          p.draft_scores + first,
          nodes,
          item.place,
          state.depth(),
          larger<std::int64_t>(item.max_nodes, 0)};
}

__device__ int depth_of(const Draft& draft, int node) {
  int depth = 0;
  for (; node >= 0; node = draft.parents[node]) ++depth;
  return depth;
}

// Whether a node is of use: what follows the end of a text is never emitted, and the end itself
// needs no draft.
__device__ bool is_of_use(const ResidentRequests& all, const Draft& draft, int node) {
  if (node >= draft.nodes || depth_of(draft, node) > draft.max_depth) return false;
  for (; node >= 0; node = draft.parents[node]) {
    const float score = draft.scores[node];
    const bool is_finite = score > -infinity() && score < infinity();
    if (!is_finite || ends_text(all, draft.place, draft.tokens[node])) return false;
  }
  return true;
}

// The rows of an item, counted by a warp.
__device__ Counts count_rows(const PackVerifyParams& p, std::int64_t i) {
  const StepItem item = p.items[i];
  if (item.place < 0) return {0, 0};
  const RequestState state = p.requests.states[item.place];
  if (!state.goes_on()) return {0, 0};
  const Draft draft = draft_of(p, i, item, state);
  std::int64_t nodes = 0;
  for (int base = 0; base < draft.nodes; base += kLanes) {
    const int node = base + static_cast<int>(threadIdx.x % kLanes);
    nodes += __popc(__ballot_sync(kWarp, is_of_use(p.requests, draft, node)));
  }
  nodes = smaller(nodes, draft.max_nodes);
  return {(item.generates != 0 ? 1 : item.num_rows) + nodes, item.samples != 0 ? 1 + nodes : 0};
}

// What threads share of the draft: of each node its score, and its row behind the root's; 0: it is
// not verified.
struct Chosen {
  float* scores;
  int* row_of;
};

// Chooses the best nodes, of equals the earlier ones, and numbers them in their order.
__device__ Chosen choose(const ResidentRequests& all, const Draft& draft) {
  float* const scores = reinterpret_cast<float*>(dynamic_shared());
  int* const row_of = reinterpret_cast<int*>(scores + draft.nodes);
  for (int node = threadIdx.x; node < draft.nodes; node += kVerifyThreads) {
    scores[node] = is_of_use(all, draft, node) ? draft.scores[node] : -infinity();
  }
  __syncthreads();
  for (int node = threadIdx.x; node < draft.nodes; node += kVerifyThreads) {
    row_of[node] =
        scores[node] > -infinity() && place_among(scores, draft.nodes, node) < draft.max_nodes;
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {
    int before = 0;
    for (int base = 0; base < draft.nodes; base += kLanes) {
      const int node = base + static_cast<int>(threadIdx.x);
      const bool mine = node < draft.nodes && row_of[node] > 0;
      const unsigned all_chosen = __ballot_sync(kWarp, mine);
      if (mine) row_of[node] = 1 + before + __popc(all_chosen & ((1u << threadIdx.x) - 1));
      before += __popc(all_chosen);
    }
  }
  __syncthreads();
  return {scores, row_of};
}

// One block an item, and the padding in turns.
__global__ void __launch_bounds__(kVerifyThreads, 1)
    verify_rows(const __grid_constant__ PackVerifyParams p) {
  Totals mine{};
  for (std::int64_t i = threadIdx.x / kLanes; i < p.num_items; i += kVerifyThreads / kLanes) {
    const Counts counts = count_rows(p, i);
    if (threadIdx.x % kLanes == 0) mine.add(i, counts);
  }
  const Totals totals = sum_block<kVerifyThreads>(mine);

  const std::int64_t b = blockIdx.x;
  const StepItem item = p.items[b];
  const std::int64_t first = totals.before.rows, logit = totals.before.logits;
  std::int64_t rows = 0, logits = 0;
  if (item.place >= 0 && p.requests.states[item.place].goes_on()) {
    const RequestState& state = p.requests.states[item.place];
    const std::int32_t* const blocks = p.requests.tables + item.place * p.requests.table_width;
    const bool generates = item.generates != 0, samples = item.samples != 0;
    const std::int64_t fed = generates ? 1 : item.num_rows;
    const std::int64_t context = generates ? state.length - 1 : item.start;
    const std::int64_t output = state.length - state.num_prompt;
    const Draft draft = draft_of(p, b, item, state);
    const Chosen chosen = choose(p.requests, draft);
    std::int64_t nodes = 0;
    for (int node = 0; node < draft.nodes; ++node) nodes += chosen.row_of[node] > 0;
    rows = fed + nodes;
    logits = samples ? 1 + nodes : 0;
    write_request(p.rows, p.layout, blocks, context, nodes > 0, first + rows);
    // Token, parent and depth of a row behind the last fed one, which is 0.
    const auto write_logit = [&](std::int64_t row, std::int64_t token, int parent, int depth) {
      const std::int64_t at = logit + row;
      if (!samples || at >= p.num_logits) return;
      p.rows.logits_rows[at] = first + fed - 1 + row;
      p.tokens[at] = token;
      p.parents[at] = parent;
      write_columns(p.columns, at, p.requests, item.place, output + depth);
    };
    for (std::int64_t j = threadIdx.x; j < fed; j += kVerifyThreads) {
      const std::int64_t row = first + j;
      if (row >= p.num_rows) break;
      const std::int64_t token = generates ? state.newest : p.chunk[item.first_token + j];
      write_row(p.rows, p.layout, row, blocks, {token, context + j, context + j, state.adapter});
      clear_mask(p.rows, p.layout, row);
      if (nodes > 0) p.rows.tree_mask[row * p.layout.mask_words] = 1;
      if (j == fed - 1) write_logit(0, 0, -1, 0);
    }
    for (int node = threadIdx.x; node < draft.nodes; node += kVerifyThreads) {
      const int own = chosen.row_of[node];
      const std::int64_t row = first + own;
      if (own == 0 || row >= p.num_rows) continue;
      const std::int64_t token = draft.tokens[node];
      const int depth = depth_of(draft, node), parent = draft.parents[node];
      write_row(p.rows, p.layout, row, blocks,
                {token, context + depth, context + own, state.adapter});
      clear_mask(p.rows, p.layout, row);
      std::int64_t* const mask = p.rows.tree_mask + row * p.layout.mask_words;
      mask[0] = 1;  // the root
      for (int at = node; at >= 0; at = draft.parents[at]) {
        const int bit = chosen.row_of[at];
        mask[bit / 64] |= static_cast<std::int64_t>(std::uint64_t{1} << (bit % 64));
      }
      write_logit(own, token, parent < 0 ? 0 : chosen.row_of[parent], depth);
    }
  } else {
    write_request(p.rows, p.layout, nullptr, 0, false, first);
  }
  if (threadIdx.x == 0) {
    if (b == 0) p.row_start[0] = 0;
    p.row_start[b + 1] = static_cast<std::int32_t>(logit + logits);
  }
  pad_rows(p.rows, p.layout, totals.all.rows, p.num_rows);
  const std::int64_t step = std::int64_t{gridDim.x} * kVerifyThreads;
  for (std::int64_t at = totals.all.logits + b * kVerifyThreads + threadIdx.x; at < p.num_logits;
       at += step) {
    p.rows.logits_rows[at] = p.tokens[at] = 0;
    p.parents[at] = 0;
    write_columns(p.columns, at, p.requests, -1, 0);
  }
}

// -- a rollout's call -----------------------------------------------------------------------------

__device__ std::int64_t count_pairs(const PackRolloutParams& p, const StepItem& item) {
  if (item.place < 0) return 0;
  const RequestState& state = p.requests.states[item.place];
  return item.rolls_out(state, p.behind) ? state.num_pairs(p.behind) : 0;
}

// One block an item, and the padding in turns.
__global__ void __launch_bounds__(kRolloutThreads, 1)
    rollout_rows(const __grid_constant__ PackRolloutParams p) {
  Totals mine{};
  for (std::int64_t i = threadIdx.x; i < p.num_items; i += kRolloutThreads) {
    mine.add(i, {count_pairs(p, p.items[i]), 0});
  }
  const Totals totals = sum_block<kRolloutThreads>(mine);

  const std::int64_t b = blockIdx.x, first = totals.before.rows;
  const StepItem item = p.items[b];
  const std::int64_t rows = count_pairs(p, item);
  std::int64_t output = 0;
  if (rows > 0) {
    const RequestState& state = p.requests.states[item.place];
    const std::int32_t* const blocks = p.requests.tables + item.place * p.requests.table_width;
    const std::int64_t context = state.drafted - state.absent;
    output = state.length - state.num_prompt;
    for (std::int64_t j = threadIdx.x; j < rows; j += kRolloutThreads) {
      const std::int64_t row = first + j;
      if (row >= p.num_rows) break;
      const std::int64_t from = ring_row(p.requests, item.place, state.drafted - p.behind + j);
      write_row(p.rows, p.layout, row, blocks,
                {p.requests.pairs[from], context + j, context + j, -1});
      clear_mask(p.rows, p.layout, row);
      p.ring_rows[row] = from;
    }
    write_request(p.rows, p.layout, blocks, context, false, first + rows);
  } else {
    write_request(p.rows, p.layout, nullptr, 0, false, first);
  }
  if (threadIdx.x == 0) {
    p.last_rows[b] = rows > 0 ? first + rows - 1 : 0;
    write_columns(p.columns, b, p.requests, rows > 0 ? item.place : -1, output);
  }
  pad_rows(p.rows, p.layout, totals.all.rows, p.num_rows);
  const std::int64_t step = std::int64_t{gridDim.x} * kRolloutThreads;
  for (std::int64_t row = totals.all.rows + b * kRolloutThreads + threadIdx.x; row < p.num_rows;
       row += step) {
    p.ring_rows[row] = 0;
  }
}

}  // namespace

cudaError_t pack_verify(const PackVerifyParams& p, cudaStream_t stream) {
  if (p.num_items <= 0) return cudaSuccess;
  const auto shared = static_cast<std::size_t>(p.num_nodes) * (sizeof(float) + sizeof(int));
  return launch(verify_rows, static_cast<unsigned>(p.num_items), kVerifyThreads, shared, stream, p);
}

cudaError_t pack_rollout(const PackRolloutParams& p, cudaStream_t stream) {
  if (p.num_items <= 0) return cudaSuccess;
  return launch(rollout_rows, static_cast<unsigned>(p.num_items), kRolloutThreads, 0, stream, p);
}

}  // namespace trtspec::cuda
