#include "emulator.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "failure.hpp"

namespace emulation {
namespace {

constexpr std::uint32_t kAllLanes = 0xffffffffu;
// Of so many warp functions one may let another warp go first.
constexpr std::uint32_t kWarpTurns = 8;

std::uint32_t draw() {
  std::uint64_t x = state().random += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>(x >> 32);
}

std::map<const void*, std::size_t>& allowed_dynamic() {
  static std::map<const void*, std::size_t> allowed;
  return allowed;
}

int num_warps() { return state().num_threads / kLanes; }

void shuffle_warps() {
  for (int warp = 0; warp < num_warps(); ++warp) state().warps[warp].priority = draw();
  state().same_warp = false;
}

int first_warp() {
  State& s = state();
  int first = -1;
  for (int warp = 0; warp < num_warps(); ++warp) {
    if (s.warps[warp].ready == 0) continue;
    if (first < 0 || s.warps[warp].priority > s.warps[first].priority) first = warp;
  }
  if (first >= 0) return first;
  fail(
      "block (%u, %u, %u) waits for itself: of %d threads %d have ended, %d wait for the block, "
      "the others for their warps",
      s.block_index.x, s.block_index.y, s.block_index.z, s.num_threads, s.num_threads - s.live,
      s.arrived);
}

// Goes on with a thread that can, from the fiber that runs.
void go_on(Fiber& from) {
  State& s = state();
  int warp = s.current / kLanes;
  if (!s.same_warp || s.warps[warp].ready == 0) warp = first_warp();
  s.same_warp = true;
  const int offset = static_cast<int>(draw() % kLanes);
  const int lane = (std::countr_zero(std::rotr(s.warps[warp].ready, offset)) + offset) % kLanes;
  const int next = warp * kLanes + lane;
  const bool stays = &s.threads[next].fiber == &from;
  s.current = next;
  s.thread_index.x = unsigned(next) % s.block_dim.x;
  s.thread_index.y = unsigned(next) / s.block_dim.x;
  if (!stays) from.switch_to(s.threads[next].fiber);
}

void release_block() {
  State& s = state();
  for (int warp = 0; warp < num_warps(); ++warp) {
    s.warps[warp].ready |= std::exchange(s.warps[warp].held, 0);
  }
  s.arrived = 0;
  shuffle_warps();
}

// A fiber lives as long as the program and runs one thread of a block after the other.
void run_threads() {
  State& s = state();
  for (;;) {
    s.body();
    const int thread = s.current;
    s.warps[thread / kLanes].ready &= ~(1u << thread % kLanes);
    // Threads that have ended are not waited for.
    if (--s.live > 0 && s.arrived == s.live) release_block();
    Fiber& mine = s.threads[thread].fiber;
    if (s.live == 0) {
      mine.switch_to(s.scheduler);
    } else {
      go_on(mine);
    }
  }
}

void run_block() {
  State& s = state();
  s.shared.poison(draw() % 2 == 0 ? 0xff : 0x7e);
  for (int thread = 0; thread < s.num_threads; ++thread) {
    s.threads[thread].exchanges = 0;
    s.threads[thread].num_copies = s.threads[thread].num_groups = 0;
    s.threads[thread].is_with_warp = false;
  }
  for (int warp = 0; warp < num_warps(); ++warp) {
    s.warps[warp].ready = kAllLanes;
    s.warps[warp].arrived = s.warps[warp].held = 0;
  }
  s.live = s.num_threads;
  s.arrived = 0;
  shuffle_warps();
  go_on(s.scheduler);
  s.shared.check();
}

void copy_now(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

}  // namespace

State& state() {
  static State* const state = new State;
  return *state;
}

void set_seed(std::uint64_t seed) { state().random = seed; }

cudaError_t allow_dynamic_shared(const void* kernel, int bytes) {
  if (bytes < 0 || std::size_t(bytes) > kDeviceBytes) return cudaErrorInvalidValue;
  allowed_dynamic()[kernel] = std::size_t(bytes);
  return cudaSuccess;
}

cudaError_t run(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                std::function<void()> body) {
  State& s = state();
  const unsigned threads = block.x * block.y * block.z;
  if (threads % kLanes != 0 || block.z != 1) fail("a block of %u threads is not emulated", threads);
  const auto asked = allowed_dynamic().find(kernel);
  std::size_t allowed = kUnaskedBytes;
  if (asked != allowed_dynamic().end()) {
    // Variables come on top of what was asked for.
    if (shared_bytes > std::max(asked->second, kUnaskedBytes)) return cudaErrorInvalidValue;
    allowed = kDeviceBytes;
  }
  if (shared_bytes > allowed || threads == 0 || threads > unsigned(kMaxThreads) || grid.x == 0 ||
      grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535) {
    return cudaErrorInvalidValue;
  }
  s.shared.open(shared_bytes, allowed);
  s.body = std::move(body);
  s.num_threads = int(threads);
  s.block_dim = block;
  s.grid_dim = grid;
  for (int thread = 0; thread < s.num_threads; ++thread) {
    if (!s.threads[thread].fiber.is_created()) s.threads[thread].fiber.create(run_threads);
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        s.block_index = dim3(x, y, z);
        run_block();
      }
    }
  }
  return cudaSuccess;
}

void block_barrier() {
  State& s = state();
  Warp& warp = s.warps[s.current / kLanes];
  const std::uint32_t mine = 1u << lane();
  warp.ready &= ~mine;
  warp.held |= mine;
  if (++s.arrived == s.live) release_block();
  go_on(s.threads[s.current].fiber);
}

void warp_barrier() {
  State& s = state();
  Thread& thread = s.threads[s.current];
  Warp& warp = s.warps[s.current / kLanes];
  const std::uint32_t mine = 1u << lane();
  warp.ready &= ~mine;
  warp.arrived |= mine;
  if (warp.arrived == kAllLanes) {
    warp.ready = std::exchange(warp.arrived, 0);
    if (draw() % kWarpTurns == 0) {
      warp.priority = draw();
      s.same_warp = false;
    }
  }
  go_on(thread.fiber);
  thread.is_with_warp = true;
}

void need_whole_warp() {
  if (state().threads[state().current].is_with_warp) return;
  fail(
      "an instruction for a whole warp, whose lanes may have gone their own ways since they last "
      "met: it lacks a __syncwarp");
}

// A copy happens at once or when it is waited for: a GPU may do either.
void copy_async(void* to, const void* from) {
  Thread& thread = state().threads[state().current];
  thread.is_with_warp = false;
  const Copy copy{to, from, thread.num_groups};
  if (draw() % 2 == 0) return copy_now(copy);
  if (thread.num_copies == Thread::kMaxCopies) fail("too many copies under way");
  thread.copies[thread.num_copies++] = copy;
}

void commit_copies() { ++state().threads[state().current].num_groups; }

void wait_copies() {
  commit_copies();
  wait_copies_but(0);
}

void wait_copies_but(int groups) {
  Thread& thread = state().threads[state().current];
  Copy* const end = thread.copies + thread.num_copies;
  Copy* const rest = std::find_if(thread.copies, end, [&](const Copy& copy) {
    return copy.group >= thread.num_groups - groups;
  });
  std::for_each(thread.copies, rest, copy_now);
  thread.num_copies = static_cast<int>(std::copy(rest, end, thread.copies) - thread.copies);
}

}  // namespace emulation
