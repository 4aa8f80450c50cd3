// Runs a kernel, compiled as C++, on the CPU: the blocks of a grid in turn, the threads of a block
// as fibers that change places at barriers and warp functions. Slow and single-threaded; for tests
// of a kernel's logic where there is no GPU.
//
// A thread runs until it must wait. Which one goes on then is drawn: of the warp that comes first in
// an order which every barrier of the block shuffles, and its own warp functions now and then, some
// lane that can. So a missing barrier shows as wrong results under one seed or another. What no GPU
// would run as it was meant ends the program with a message: threads that wait for each other for
// ever (a barrier in divergent code), an instruction that needs its warp together where it may not
// be, and shared memory beyond what there is (shared_memory.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"
#include "fiber.hpp"
#include "shared_memory.hpp"

namespace emulation {

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline constexpr int kMaxThreads = 1024;
inline constexpr int kLanes = 32;
inline constexpr int kMaxWarps = kMaxThreads / kLanes;
inline constexpr std::size_t kSlotBytes = 64;

struct Copy {
  void* to;
  const void* from;  // null: zeros
  int group;         // how many groups the thread had ended before
};

struct Thread {
  Fiber fiber;
  unsigned exchanges = 0;
  bool is_with_warp = false;  // it did nothing by itself since its lanes last met
  // Asynchronous copies of 16 bytes that are under way.
  static constexpr int kMaxCopies = 256;
  Copy copies[kMaxCopies];
  int num_copies = 0;
  int num_groups = 0;  // of copies, that were ended
};

struct Warp {
  std::uint32_t ready = 0;    // lanes that can go on
  std::uint32_t arrived = 0;  // lanes that wait for their warp
  std::uint32_t held = 0;     // lanes that wait for the block
  std::uint32_t priority = 0;
  alignas(16) unsigned char slots[2][kLanes][kSlotBytes];
};

struct State {
  dim3 thread_index, block_index, block_dim, grid_dim;
  Thread threads[kMaxThreads];
  Warp warps[kMaxWarps];
  int num_threads = 0;
  int live = 0;     // threads that have not ended
  int arrived = 0;  // threads that wait for the block
  int current = 0;
  bool same_warp = false;  // the warp of `current` still comes first
  std::uint64_t random = 0;
  std::function<void()> body;
  Fiber scheduler;
  SharedMemory shared;
};

State& state();

inline int lane() { return state().current % kLanes; }

// What the order of threads, and all else that is drawn, follows from here on.
void set_seed(std::uint64_t seed);

// Lets a kernel have so many bytes of dynamic shared memory; an error if no device has them.
cudaError_t allow_dynamic_shared(const void* kernel, int bytes);

// Runs `body`, the kernel with its arguments, as every thread of every block. An error, and nothing
// is run, for a grid or a block that no device takes, or more shared memory than the kernel was
// allowed.
cudaError_t run(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                std::function<void()> body);

void block_barrier();
void warp_barrier();
// Of an instruction that all lanes of a warp must issue at once (`.aligned` in PTX): ends the
// program if a lane went its own way since the warp last met.
void need_whole_warp();

void copy_async(void* to, const void* from);
void commit_copies();
void wait_copies();
// For those of all groups that were ended but the last ones.
void wait_copies_but(int groups);

// The values that the lanes of a warp brought to a warp function.
template <class T>
class Exchanged {
 public:
  explicit Exchanged(const unsigned char (*slots)[kSlotBytes]) : slots_(slots) {}
  T of(int lane) const {
    T value;
    __builtin_memcpy(&value, slots_[lane], sizeof(T));
    return value;
  }

 private:
  const unsigned char (*slots_)[kSlotBytes];
};

// All lanes of the warp must call it. Two sets of slots take turns: a lane writes to one again only
// after the barrier of the next exchange, when all lanes have read it.
template <class T>
Exchanged<T> exchange(const T& value) {
  static_assert(sizeof(T) <= kSlotBytes);
  State& s = state();
  Warp& warp = s.warps[s.current / kLanes];
  auto* slots = warp.slots[s.threads[s.current].exchanges++ & 1];
  __builtin_memcpy(slots[lane()], &value, sizeof(T));
  warp_barrier();
  return Exchanged<T>(slots);
}

}  // namespace emulation
