#include "read_kernel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

namespace {

constexpr int kLanes = 16;       // two cache lines
constexpr int kAhead = 1 << 10;  // words: a processor's own prefetching stops at a page's end

}  // namespace

std::uint64_t read_kernel(const std::uint64_t* data, std::int64_t count) {
  std::uint64_t sums[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(data + i + kAhead);
    __builtin_prefetch(data + i + kAhead + kLanes / 2);
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += data[i + lane];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : sums) sum += lane;
  return sum;
}

}  // namespace trtspec::TRTSPEC_ISA_NS
