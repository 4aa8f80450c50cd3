// MemorySpeed: how fast memory can be read, as the best of several samples over a run.
#pragma once

#include <functional>
#include <utility>

namespace trtspec::bench {

// A single sample may fall into a moment in which others are busy, and other work only ever makes a
// sample smaller: the best of several, at different times, is what the machine can do.
class MemorySpeed {
 public:
  // measure: bytes a second, now.
  explicit MemorySpeed(std::function<double()> measure) : measure_(std::move(measure)) {}

  void sample();
  double best() const { return best_; }

 private:
  std::function<double()> measure_;
  double best_ = 0.0;
};

// A sampler of the host's memory by that many OpenMP threads, whatever the calling thread may have.
std::function<double()> host_memory_speed(int threads);

}  // namespace trtspec::bench
