#include "memory_speed.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <trtspec/bandwidth.hpp>
#include <trtspec/host.hpp>

namespace trtspec::bench {

namespace {

// Read for a sample, where there is that much to spare.
constexpr std::int64_t kBandwidthBytes = std::int64_t{1} << 29;

}  // namespace

void MemorySpeed::sample() { best_ = std::max(best_, measure_()); }

std::function<double()> host_memory_speed(int threads) {
  return [threads] {
    double speed = 0.0;
    std::exception_ptr failure;
    // In a thread of its own: the steps' one keeps OpenMP to itself alone (see take_threads), and
    // the threads that this one asks for end with it.
    std::thread([&] {
      try {
        at::set_num_threads(threads);
        const std::int64_t bytes = std::min(kBandwidthBytes, available_memory() / 4);
        speed = measure_read_bandwidth(std::max(bytes, kMinBandwidthBytes));
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
    return speed;
  };
}

}  // namespace trtspec::bench
