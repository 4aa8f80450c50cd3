#include "bandwidth.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <trtspec/runtime/engine_runtime.hpp>

namespace trtspec::bench {

namespace {
constexpr std::int64_t kBytes = std::int64_t{512} << 20;
constexpr int kPasses = 4;
}  // namespace

double measure_read_bandwidth() {
  const std::int64_t bytes = std::min(kBytes, available_memory() / 4);
  const std::int64_t count = std::max<std::int64_t>(bytes / 8, 1);
  const std::unique_ptr<std::uint64_t[]> buffer(new std::uint64_t[static_cast<std::size_t>(count)]);
  std::uint64_t* const data = buffer.get();
  // Written by the threads that read it, so that each finds its part nearby.
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<std::uint64_t>(i);
  double best = 0.0;
  volatile std::uint64_t kept = 0;  // or nothing would be read
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto began = std::chrono::steady_clock::now();
    std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += data[i];
    const auto taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - began);
    kept = kept + sum;
    best = std::max(best, static_cast<double>(count * 8) / taken.count());
  }
  return best;
}

}  // namespace trtspec::bench
