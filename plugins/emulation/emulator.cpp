#include "emulator.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace emulation {
namespace {

void set_current(int thread) {
  State& s = state();
  s.current = thread;
  s.thread_index.x = unsigned(thread) % s.block_dim.x;
  s.thread_index.y = unsigned(thread) / s.block_dim.x;
}

// Goes on with another thread that is not done; the caller has saved its own place.
[[noreturn]] void resume_next() {
  State& s = state();
  int next = s.current;
  do {
    next = next + 1 == s.threads ? 0 : next + 1;
  } while (s.fibers[next].done);
  set_current(next);
  _longjmp(s.fibers[next].place, 1);
}

void yield() {
  State& s = state();
  if (++s.idle > 2 * kMaxThreads) {
    std::fprintf(stderr, "emulator: block (%u, %u, %u) of %d threads waits for itself\n",
                 s.block_index.x, s.block_index.y, s.block_index.z, s.threads);
    std::abort();
  }
  if (_setjmp(s.fibers[s.current].place) == 0) resume_next();
}

void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
  state().idle = 0;
}

void wait(Barrier& barrier, const int& expected) {
  const unsigned mine = barrier.generation;
  if (++barrier.arrived == expected) release(barrier);
  while (barrier.generation == mine) yield();
}

// A fiber lives as long as the program and runs one thread of a block after the other.
void fiber_main() {
  if (_setjmp(state().fibers[state().current].place) == 0) _longjmp(state().scheduler, 1);
  for (;;) {
    state().body();
    State& s = state();
    s.fibers[s.current].done = true;
    s.idle = 0;
    // Threads that have ended are not waited for.
    if (--s.live > 0 && s.block.arrived == s.live) release(s.block);
    if (_setjmp(s.fibers[s.current].place) != 0) continue;
    if (s.live == 0) _longjmp(s.scheduler, 1);
    resume_next();
  }
}

void create_fiber(int thread) {
  State& s = state();
  Fiber& fiber = s.fibers[thread];
  fiber.stack.reset(new char[kStackBytes]);
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, fiber_main, 0);
  set_current(thread);
  if (_setjmp(s.scheduler) == 0) setcontext(&fiber.start);
}

void run_block() {
  State& s = state();
  std::memset(s.shared.get(), 0xff, kSharedBytes);
  for (int thread = 0; thread < s.threads; ++thread) {
    Fiber& fiber = s.fibers[thread];
    fiber.done = false;
    fiber.exchanges = 0;
    fiber.num_copies = fiber.num_groups = 0;
  }
  s.live = s.threads;
  s.idle = 0;
  set_current(0);
  if (_setjmp(s.scheduler) == 0) _longjmp(s.fibers[0].place, 1);
}

void copy_now(Fiber& fiber, int count) {
  for (int i = 0; i < count; ++i) {
    const Copy& copy = fiber.copies[i];
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      std::memset(copy.to, 0, 16);
    }
  }
  fiber.num_copies -= count;
  std::memmove(fiber.copies, fiber.copies + count, sizeof(Copy) * std::size_t(fiber.num_copies));
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

}  // namespace

State& state() {
  static State* const state = new State;
  return *state;
}

void run(dim3 grid, dim3 block, std::size_t shared_bytes, std::function<void()> body) {
  State& s = state();
  const unsigned threads = block.x * block.y * block.z;
  if (threads % kLanes != 0 || threads > kMaxThreads || block.z != 1) fail("bad block size");
  if (shared_bytes > kSharedBytes) fail("too much shared memory");
  if (grid.y > 65535 || grid.z > 65535) fail("grid too large");
  if (s.shared == nullptr) s.shared.reset(new unsigned char[kSharedBytes + 128]);
  s.body = std::move(body);
  s.threads = int(threads);
  s.block_dim = block;
  s.grid_dim = grid;
  for (int thread = 0; thread < s.threads; ++thread) {
    if (s.fibers[thread].stack == nullptr) create_fiber(thread);
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        s.block_index = dim3(x, y, z);
        run_block();
      }
    }
  }
}

unsigned char* dynamic_shared() {
  const auto address = reinterpret_cast<std::uintptr_t>(state().shared.get());
  return reinterpret_cast<unsigned char*>((address + 127) / 128 * 128);
}

void block_barrier() { wait(state().block, state().live); }

void warp_barrier() {
  static const int lanes = kLanes;
  wait(state().warps[state().current / kLanes].barrier, lanes);
}

void copy_async(void* to, const void* from) {
  Fiber& fiber = state().fibers[state().current];
  if (fiber.num_copies == Fiber::kMaxCopies) fail("too many copies under way");
  fiber.copies[fiber.num_copies++] = {to, from};
}

void commit_copies() {
  Fiber& fiber = state().fibers[state().current];
  if (fiber.num_groups == 16) fail("too many groups of copies");
  fiber.group_end[fiber.num_groups++] = fiber.num_copies;
}

void wait_copies(int groups_left) {
  Fiber& fiber = state().fibers[state().current];
  const int finished = fiber.num_groups - groups_left;
  if (finished <= 0) return;
  const int copies = fiber.group_end[finished - 1];
  copy_now(fiber, copies);
  for (int i = finished; i < fiber.num_groups; ++i) {
    fiber.group_end[i - finished] = fiber.group_end[i] - copies;
  }
  fiber.num_groups -= finished;
}

}  // namespace emulation
