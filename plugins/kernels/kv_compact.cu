// kv_compact: the accepted rows of a tree go to consecutive slots, in every layer's caches.
#include <kernels.hpp>

#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kCachesOfLaunch = 256;
constexpr std::int64_t kSharedBytes = kMaxCompactPairs * 16;
constexpr std::int64_t kWidestSlice = 512;  // bytes of a row that one block moves, at most

struct Caches {
  void* data[kCachesOfLaunch];
};

struct Moves {
  const std::int64_t* src;
  const std::int64_t* dst;
  int pairs;
  int row_units;    // of a row
  int slice_units;  // of a row, in one block
};

// A block moves one slice of all rows of one cache (blockIdx.y): it reads all of them before it
// writes any, and no other block touches that slice.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    move_rows(const __grid_constant__ Caches caches, Moves moves) {
  Unit* const rows = reinterpret_cast<Unit*>(dynamic_shared());  // [pairs][slice_units]
  Unit* const cache = static_cast<Unit*>(caches.data[blockIdx.y]);
  const int begin = blockIdx.x * moves.slice_units;
  const int units = smaller(moves.slice_units, moves.row_units - begin);
  const int total = moves.pairs * units;
  const auto stays = [&](int pair) {
    return moves.src[pair] < 0 || moves.dst[pair] < 0 || moves.src[pair] == moves.dst[pair];
  };
  for (int i = threadIdx.x; i < total; i += kThreads) {
    const int pair = i / units;
    if (!stays(pair)) rows[i] = cache[moves.src[pair] * moves.row_units + begin + i % units];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < total; i += kThreads) {
    const int pair = i / units;
    if (!stays(pair)) cache[moves.dst[pair] * moves.row_units + begin + i % units] = rows[i];
  }
}

template <class Unit>
cudaError_t move(const Caches& caches, std::int64_t count, std::int64_t row_bytes, Moves moves,
                 cudaStream_t stream) {
  constexpr std::int64_t kUnit = sizeof(Unit);
  std::int64_t slice = kWidestSlice;
  while (slice > 16 && slice * moves.pairs > kSharedBytes / 2) slice /= 2;
  slice = smaller(slice, divide_up(row_bytes, kUnit) * kUnit);
  moves.row_units = static_cast<int>(row_bytes / kUnit);
  moves.slice_units = static_cast<int>(slice / kUnit);
  const dim3 grid(static_cast<unsigned>(divide_up(moves.row_units, moves.slice_units)),
                  static_cast<unsigned>(count));
  return launch(move_rows<Unit>, grid, kThreads, static_cast<std::size_t>(slice * moves.pairs),
                stream, caches, moves);
}

}  // namespace

cudaError_t kv_compact(void* const* caches, std::int64_t num_caches, std::int64_t row_bytes,
                       const std::int64_t* src_slots, const std::int64_t* dst_slots, std::int64_t n,
                       cudaStream_t stream) {
  if (n <= 0 || row_bytes <= 0) return cudaSuccess;
  if (n > kMaxCompactPairs) return cudaErrorInvalidValue;
  const Moves moves{src_slots, dst_slots, static_cast<int>(n), 0, 0};
  for (std::int64_t first = 0; first < num_caches; first += kCachesOfLaunch) {
    const std::int64_t count = smaller(kCachesOfLaunch, num_caches - first);
    Caches some{};
    bool vectors = row_bytes % 16 == 0;
    for (std::int64_t i = 0; i < count; ++i) {
      some.data[i] = caches[first + i];
      vectors = vectors && reinterpret_cast<std::uintptr_t>(caches[first + i]) % 16 == 0;
    }
    const cudaError_t error = vectors ? move<uint4>(some, count, row_bytes, moves, stream)
                                      : move<std::uint8_t>(some, count, row_bytes, moves, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace trtspec::cuda
