// advance: what a verified step makes of the requests that a device keeps.
#include <kernels.hpp>
#include <trtspec/finish_reason.hpp>

#include "launch.hpp"
#include "resident.cuh"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr int kHeader = 4;  // columns of a result before those of its tokens

// The rows of an item that were verified, and the walk through them.
struct Verified {
  std::int64_t place;
  const std::int64_t* tokens;
  const std::int64_t* sampled;
  const std::int32_t* path;
  int walked;
};

// What an item emits: so many tokens, for which reason its text ends.
struct Emission {
  int count;
  FinishReason reason;
};

// Writes the tokens of an item, up to where its text ends; by a warp. remaining: how many it may
// emit. Nobody forces a walk here, so no child of its last row carries what that row emits.
__device__ Emission emit(const ResidentRequests& all, const Verified& v, std::int64_t remaining,
                         std::int64_t* emitted) {
  const int lane = threadIdx.x % kLanes;
  const std::int64_t bonus = v.walked == 0 ? -1 : v.sampled[v.path[v.walked - 1]];
  // What came before a row without a usable number stands; the next step fails.
  const int count = bonus < 0 ? v.walked - 1 : v.walked;
  if (count <= 0) return {0, FinishReason::error};
  const int allowed =
      static_cast<int>(smaller<std::int64_t>(count, larger<std::int64_t>(remaining, 0)));
  for (int base = 0; base < allowed; base += kLanes) {
    const int at = base + lane;
    std::int64_t token = bonus;
    if (at + 1 < v.walked) token = v.tokens[v.path[at + 1]];
    if (at < allowed) emitted[at] = token;
    const unsigned ends = __ballot_sync(kWarp, at < allowed && ends_text(all, v.place, token));
    if (ends != 0) return {base + __ffs(ends), FinishReason::stop};
  }
  return {allowed, allowed >= remaining ? FinishReason::length : FinishReason::none};
}

// A row of the call that is to be kept, for a pair that waits.
struct Pair {
  std::int64_t position;
  std::int64_t token;
  std::int64_t row;
};

// One block an item.
__global__ void __launch_bounds__(kThreads, 1)
    advance_requests(const __grid_constant__ AdvanceParams p) {
  const ResidentRequests& all = p.requests;
  const std::int64_t b = blockIdx.x;
  const StepItem item = p.items[b];
  const bool is_used = item.place >= 0;
  const RequestState state = is_used ? all.states[item.place] : RequestState{};
  const bool goes_on = is_used && state.goes_on();
  const bool generates = item.generates != 0, samples = item.samples != 0;
  const std::int64_t first = p.row_start[b], rows = p.row_start[b + 1] - first;
  std::int64_t* const emitted = reinterpret_cast<std::int64_t*>(dynamic_shared());
  const std::int32_t* const path = p.accepted_rows + b * p.width;
  auto& shared = static_shared<Emission>();
  if (threadIdx.x < kLanes) {
    Emission own{0, FinishReason::none};
    if (goes_on && rows > 0) {
      own = emit(all, {item.place, p.tokens + first, p.sampled + first, path, p.num_emitted[b]},
                 state.limit - state.length, emitted);
    }
    if (threadIdx.x == 0) shared = own;
  }
  // Before the tokens are read, and behind the last look at the state.
  __syncthreads();
  const Emission emission = shared;
  const int count = emission.count;

  const std::int64_t root = generates ? state.length - 1 : item.start + item.num_rows - 1;
  std::int64_t drafted = state.drafted, max_depth = state.max_depth;
  std::int64_t begin = root;  // the first of a prompt's pairs that wait, before its newest row's
  bool keeps_pairs = goes_on && all.ring > 0 && max_depth > 0;
  if (keeps_pairs) {
    if (!generates || item.rolls_out(state, p.rule.behind)) {
      // The pairs before the newest row's were fed, by a rollout, or are behind this call.
      drafted = larger(drafted, root + p.rule.behind - p.rule.not_final);
    }
    const std::int64_t waits = drafted - p.rule.behind;
    if (root + (generates ? count : 1) - waits > all.ring) {
      max_depth = 0;  // there is no room for what its draft has to be fed
      keeps_pairs = false;
    } else if (!generates) {
      begin = smaller(larger(item.start, waits), root);
    }
  }
  const bool keeps_next = keeps_pairs && !generates && !samples;
  const std::int64_t of_prompt = root - begin + keeps_next;
  const std::int64_t kept = keeps_pairs ? of_prompt + count : 0;
  const std::int64_t fed = p.query_start[b];
  const auto pair_at = [&](std::int64_t i) -> Pair {
    if (i < of_prompt) {
      const std::int64_t at = begin + i - item.start;
      return {begin + i, p.chunk[item.first_token + at + 1], fed + at};
    }
    const std::int64_t place = i - of_prompt;
    return {root + place, emitted[place], fed + item.num_rows - 1 + path[place]};
  };
  for (std::int64_t i = threadIdx.x; i < all.ring; i += kThreads) {
    std::int64_t row = 0, to = all.num_places * all.ring;
    if (i < kept) {
      const Pair pair = pair_at(i);
      row = pair.row;
      to = ring_row(all, item.place, pair.position);
      all.pairs[to] = pair.token;
    }
    p.kept_rows[b * all.ring + i] = row;
    p.ring_rows[b * all.ring + i] = to;
  }

  const std::int64_t columns = kHeader + 4 * p.width;
  std::int64_t* const result = p.result + b * columns;
  const std::int64_t nodes = goes_on ? larger<std::int64_t>(rows - 1, 0) : 0;
  const std::int32_t* const table = all.tables + (is_used ? item.place : 0) * all.table_width;
  const auto slot = [&](std::int64_t row) { return slot_of(table, p.block_size, row); };
  for (std::int64_t i = threadIdx.x; i < p.width; i += kThreads) {
    const bool is_emitted = i < count, is_node = i < nodes;
    const bool moves = is_emitted && path[i] != i;
    result[kHeader + i] = is_emitted ? emitted[i] : 0;
    result[kHeader + p.width + i] = is_emitted ? path[i] : 0;
    result[kHeader + 2 * p.width + i] = is_node ? p.tokens[first + 1 + i] : 0;
    result[kHeader + 3 * p.width + i] = is_node ? p.parents[first + 1 + i] - 1 : 0;
    p.src_slots[b * p.width + i] = moves ? slot(root + path[i]) : -1;
    p.dst_slots[b * p.width + i] = moves ? slot(root + i) : -1;
  }
  if (threadIdx.x != 0) return;
  result[0] = count;
  result[1] = static_cast<std::int64_t>(emission.reason);
  result[2] = drafted;
  result[3] = nodes;
  if (!goes_on) return;
  RequestState& to = all.states[item.place];
  to.drafted = drafted;
  to.max_depth = max_depth;
  to.end = static_cast<std::int64_t>(emission.reason);
  if (count > 0) {
    to.length = state.length + count;
    to.newest = emitted[count - 1];
  }
}

}  // namespace

cudaError_t advance(const AdvanceParams& p, cudaStream_t stream) {
  if (p.num_items <= 0) return cudaSuccess;
  return launch(advance_requests, static_cast<unsigned>(p.num_items), kThreads,
                static_cast<std::size_t>(p.width) * sizeof(std::int64_t), stream, p);
}

}  // namespace trtspec::cuda
