// Runs a kernel, compiled as C++, on the CPU: the blocks of a grid in turn, the threads of a block
// as fibers that change places at barriers and warp functions. Slow and single-threaded; for tests
// of a kernel's logic where there is no GPU.
//
// Shared memory is filled with NaNs before each block. A fiber runs until it must wait, so a missing
// barrier shows as wrong results rather than as a rare race. Threads that wait for each other for
// ever (a barrier in divergent code) end the program with a message.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <ucontext.h>

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
inline constexpr std::size_t kStackBytes = 128 * 1024;
inline constexpr std::size_t kSharedBytes = 227 * 1024;
inline constexpr std::size_t kSlotBytes = 64;

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
};

struct Fiber {
  ucontext_t start;
  std::jmp_buf place;
  std::unique_ptr<char[]> stack;
  bool done = true;
  unsigned exchanges = 0;
  // Asynchronous copies of 16 bytes happen as late as they may: when they are waited for.
  static constexpr int kMaxCopies = 256;
  Copy copies[kMaxCopies];
  int num_copies = 0;
  int group_end[16];  // copies before this one belong to the group
  int num_groups = 0;
};

struct Warp {
  Barrier barrier;
  alignas(16) unsigned char slots[2][kLanes][kSlotBytes];
};

struct State {
  dim3 thread_index, block_index, block_dim, grid_dim;
  Fiber fibers[kMaxThreads];
  Warp warps[kMaxThreads / kLanes];
  Barrier block;
  int threads = 0;
  int live = 0;
  int current = 0;
  int idle = 0;  // switches since a thread last got on
  std::function<void()> body;
  std::jmp_buf scheduler;
  std::unique_ptr<unsigned char[]> shared;
};

State& state();

inline int lane() { return state().current % kLanes; }

// Runs `body` as every thread of every block.
void run(dim3 grid, dim3 block, std::size_t shared_bytes, std::function<void()> body);

unsigned char* dynamic_shared();
void block_barrier();
void warp_barrier();

void copy_async(void* to, const void* from);
void commit_copies();
void wait_copies(int groups_left);

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
  auto* slots = warp.slots[s.fibers[s.current].exchanges++ & 1];
  __builtin_memcpy(slots[lane()], &value, sizeof(T));
  warp_barrier();
  return Exchanged<T>(slots);
}

}  // namespace emulation
