// accept: the walk through verified trees, and the moves of K/V rows that it asks for.
#include <kernels.hpp>

#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr int kWarps = 4;

// The flat slot of a cache position of request b.
__device__ std::int64_t slot_at(const AcceptParams& a, std::int64_t b, std::int64_t position) {
  return a.block_tables[b * a.table_width + position / a.block_size] * a.block_size +
         position % a.block_size;
}

// Writes the path to the first row of depth `nodes`, or of the deepest there is; returns its rows.
__device__ int forced_path(const AcceptParams& a, int first, int rows, int nodes,
                           std::int32_t* path) {
  int last = 0, deepest = 0;
  for (int row = 1; row < rows; ++row) {
    int depth = 0;
    for (int above = row; above > 0; above = a.parents[first + above]) ++depth;
    if (depth <= nodes && depth > deepest) last = row, deepest = depth;
  }
  for (int place = deepest; place >= 0; --place) {
    path[place] = last;
    last = a.parents[first + last];
  }
  for (int place = 0; place <= deepest; ++place) {
    if (a.sampled[first + path[place]] < 0) return place + 1;
  }
  return deepest + 1;
}

// One warp a request. A child's row lies behind its parent's, so the walk is one pass over the
// rows, 32 at a time.
__global__ void __launch_bounds__(kWarps* kLanes)
    accept_walk(const __grid_constant__ AcceptParams a) {
  const std::int64_t b = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (b >= a.requests) return;
  const int lane = threadIdx.x % kLanes;
  const int first = a.row_start[b];
  const int rows = a.row_start[b + 1] - first;
  bool valid = rows >= 1 && rows <= a.width;
  for (int row = 1 + lane; valid && row < rows; row += kLanes) {
    const int parent = a.parents[first + row];
    valid = parent >= 0 && parent < row;
  }
  valid = __ballot_sync(kWarp, valid) == kWarp;

  const std::int64_t out = b * a.width;
  const auto moves = [&](int place, std::int64_t from, std::int64_t to) {
    if (a.src_slots == nullptr) return;
    a.src_slots[out + place] = from;
    a.dst_slots[out + place] = to;
  };
  // Lane 0 keeps the walk.
  const auto step = [&](int place, int row) {
    a.accepted_rows[out + place] = row;
    if (a.emitted != nullptr) {
      if (place > 0) a.emitted[out + place - 1] = a.tokens[first + row];
      a.emitted[out + place] = a.sampled[first + row];
    }
    if (a.src_slots == nullptr || row == place) return moves(place, -1, -1);
    const std::int64_t context = a.context_lens[b];
    moves(place, slot_at(a, b, context + row), slot_at(a, b, context + place));
  };
  int emitted = 0;
  const int nodes = valid && a.forced != nullptr ? a.forced[b] : -1;
  if (nodes >= 0) {  // of benchmarks alone, so by one lane
    if (lane == 0) emitted = forced_path(a, first, rows, nodes, a.accepted_rows + out);
    __syncwarp();  // before others pad what it wrote
    emitted = __shfl_sync(kWarp, emitted, 0);
    for (int place = 0; lane == 0 && place < emitted; ++place) {
      step(place, a.accepted_rows[out + place]);
    }
  } else if (valid) {
    int current = 0;
    if (lane == 0) step(0, 0);
    emitted = 1;
    for (int base = 0; base < rows; base += kLanes) {
      const int row = base + lane;
      const bool node = row >= 1 && row < rows;
      const int parent = node ? a.parents[first + row] : -1;
      const std::int64_t token = node ? a.tokens[first + row] : 0;
      for (;;) {
        const std::int64_t wanted = a.sampled[first + current];
        const unsigned children =
            __ballot_sync(kWarp, row > current && parent == current && token == wanted);
        if (children == 0) break;
        current = base + __ffs(children) - 1;
        if (lane == 0) step(emitted, current);
        ++emitted;
      }
    }
  }
  if (lane == 0) a.num_emitted[b] = emitted;
  for (int place = emitted + lane; place < a.width; place += kLanes) {
    a.accepted_rows[out + place] = -1;
    if (a.emitted != nullptr) a.emitted[out + place] = -1;
    moves(place, -1, -1);
  }
}

}  // namespace

cudaError_t accept(const AcceptParams& params, cudaStream_t stream) {
  if (params.requests <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(divide_up(params.requests, kWarps));
  return launch(accept_walk, blocks, kWarps * kLanes, 0, stream, params);
}

}  // namespace trtspec::cuda
