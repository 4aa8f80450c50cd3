// The emulator itself: that it refuses, or shows, what no GPU would run as it was meant.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "../kernels/launch.hpp"
#include "seeds.hpp"

namespace {

using namespace trtspec::cuda;

constexpr unsigned kThreads = 64;

// What the program prints as it ends, if running `body` in a child ends it by a signal or with an
// error; else "".
template <class Body>
std::string last_words(const Body& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? "" : said;
}

template <class Body>
bool ends_with(const Body& body, const char* message) {
  const std::string said = last_words(body);
  if (said.find(message) != std::string::npos) return true;
  std::printf("'%s' is not in '%s'\n", message, said.c_str());
  return false;
}

// -- orders ---------------------------------------------------------------------------------------

constexpr int kWarps = kThreads / kLanes;

// Where each warp, and each lane of the first one, came in the order of a block.
__global__ void note_order(int* next, int* warp_places, int* lane_places) {
  if (threadIdx.x < kLanes) lane_places[threadIdx.x] = *next;
  ++*next;
  __syncwarp();
  if (threadIdx.x % kLanes == 0) warp_places[threadIdx.x / kLanes] = (*next)++;
}

void orders_differ() {
  std::set<std::vector<int>> warp_orders, lane_orders;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<int> first_lanes;
    for (int repeat = 0; repeat < 2; ++repeat) {
      emulation::set_seed(seed);
      int next = 0;
      std::vector<int> warps(kWarps), lanes(kLanes);
      launch(note_order, 1, kThreads, 0, nullptr, &next, warps.data(), lanes.data());
      CHECK_EQ(next, int(kThreads) + kWarps);
      warp_orders.insert({warps[0] < warps[1]});
      lane_orders.insert(lanes);
      if (repeat == 1) CHECK(lanes == first_lanes);
      first_lanes = lanes;
    }
  }
  CHECK_EQ(warp_orders.size(), 2U);
  CHECK_EQ(lane_orders.size(), 20U);
}

// Each thread hands a value to the one in the same place from the end, `kSteps` times, with or
// without a barrier before the value is read, and before it is overwritten.
constexpr int kSteps = 3;
__global__ void hand_over(bool before_read, bool before_write, int* wrong) {
  int* const shared = reinterpret_cast<int*>(dynamic_shared());
  for (int step = 0; step < kSteps; ++step) {
    shared[threadIdx.x] = step;
    if (before_read) __syncthreads();
    if (shared[kThreads - 1 - threadIdx.x] != step) ++*wrong;
    if (before_write) __syncthreads();
  }
}

// The same among the lanes of a warp.
__global__ void hand_over_in_warp(bool before_read, bool before_write, int* wrong) {
  int* const shared = reinterpret_cast<int*>(dynamic_shared());
  const int other = threadIdx.x ^ (kLanes - 1);
  for (int step = 0; step < kSteps; ++step) {
    shared[threadIdx.x] = step;
    if (before_read) __syncwarp();
    if (shared[other] != step) ++*wrong;
    if (before_write) __syncwarp();
  }
}

void missing_barriers_show() {
  for (const auto kernel : {hand_over, hand_over_in_warp}) {
    for (const auto& [before_read, before_write] :
         {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
      int wrong = 0;
      for (unsigned seed = 0; seed < 3; ++seed) {
        emulation::set_seed(seed);
        launch(kernel, 4, kThreads, kThreads * sizeof(int), nullptr, before_read, before_write,
               &wrong);
      }
      CHECK_EQ(wrong > 0, !(before_read && before_write));
    }
  }
}

// One thread copies `kSteps` values, each `ahead` steps before it is read.
template <int kGroups>
__global__ void copy_ahead(const int* from, int ahead, int* wrong) {
  if (threadIdx.x > 0) return;
  int* const shared = reinterpret_cast<int*>(dynamic_shared());
  const auto start = [&](int step) {
    if (step < kSteps) copy_async(shared + step * 4, from + step * 4, true);
    commit_copies();
  };
  for (int step = 0; step < ahead; ++step) start(step);
  for (int step = 0; step < kSteps; ++step) {
    start(step + ahead);
    wait_copies_but<kGroups>();
    if (shared[step * 4] != step) ++*wrong;
  }
}

void waiting_for_too_few_copies_shows() {
  const int from[4 * kSteps] = {0, 0, 0, 0, 1, 0, 0, 0, 2};
  int enough = 0, too_few = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    emulation::set_seed(seed);
    for (const int ahead : {1, 2}) {
      launch(copy_ahead<1>, 1, kLanes, sizeof from, nullptr, from, ahead, &enough);
    }
    launch(copy_ahead<2>, 1, kLanes, sizeof from, nullptr, from, 1, &too_few);
  }
  CHECK_EQ(enough, 0);
  CHECK(too_few > 0);
}

__global__ void wait_in_divergent_code() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

// -- instructions of whole warps ------------------------------------------------------------------

__global__ void load_after_copies(bool meet, const std::uint16_t* from) {
  unsigned char* const shared = dynamic_shared();
  copy_async(shared + threadIdx.x % kLanes * 16, from, threadIdx.x % 2 == 0);
  commit_copies();
  wait_copies();
  if (meet) __syncwarp();
  load_matrices(shared + threadIdx.x % kLanes * 16);
}

void aligned_instructions_need_their_warp() {
  const std::uint16_t from[8] = {};
  CHECK_EQ(last_words([&] { launch(load_after_copies, 1, kLanes, 512, nullptr, true, from); }), "");
  CHECK(ends_with([&] { launch(load_after_copies, 1, kLanes, 512, nullptr, false, from); },
                  "lacks a __syncwarp"));
}

// -- shared memory --------------------------------------------------------------------------------

// What the block finds in its shared memory, before it fills that with zeros.
__global__ void find_and_clear(std::uint32_t* found) {
  auto& fixed = static_shared<std::uint32_t[kThreads]>();
  auto* const asked = reinterpret_cast<std::uint32_t*>(dynamic_shared());
  std::uint32_t* const mine = found + (blockIdx.x * kThreads + threadIdx.x) * 2;
  mine[0] = fixed[threadIdx.x];
  mine[1] = asked[threadIdx.x];
  fixed[threadIdx.x] = asked[threadIdx.x] = 0;
}

void shared_memory_is_poisoned() {
  constexpr unsigned kBlocks = 20;
  std::vector<std::uint32_t> found(kBlocks * kThreads * 2);
  emulation::set_seed(0);
  for (int launches = 0; launches < 2; ++launches) {
    launch(find_and_clear, kBlocks, kThreads, kThreads * 4, nullptr, found.data());
    std::set<std::uint32_t> kinds(found.begin(), found.end());
    CHECK(kinds == std::set<std::uint32_t>({0xffffffffu, 0x7e7e7e7eu}));
  }
}

// Writes the element of a thread beyond its share.
__global__ void write_beyond(bool to_variable, int elements) {
  auto& fixed = static_shared<int[kThreads]>();
  int* const to = to_variable ? fixed : reinterpret_cast<int*>(dynamic_shared());
  for (int i = threadIdx.x; i < elements; i += kThreads) to[i] = 1;
}

template <std::size_t bytes>
__global__ void take_variables() {
  static_shared<char[bytes]>()[threadIdx.x] = 1;
  static_shared<char[16]>()[0] = 1;
}

void shared_memory_has_limits() {
#if defined(__SANITIZE_ADDRESS__)
  const char* const beyond = "use-after-poison";
#else
  const char* const beyond = "wrote beyond the shared memory";
#endif
  for (const bool variable : {false, true}) {
    const auto write = [&](int elements) {
      launch(write_beyond, 1, kThreads, kThreads * sizeof(int), nullptr, variable, elements);
    };
    CHECK_EQ(last_words([&] { write(kThreads); }), "");
    CHECK(ends_with([&] { write(kThreads + 1); }, beyond));
  }
  constexpr std::size_t kKiB = 1024;
  // nvcc refuses variables of more than 48 KiB.
  CHECK_EQ(launch(take_variables<48 * kKiB - 16>, 1, kThreads, 0, nullptr), cudaSuccess);
  CHECK(ends_with([] { launch(take_variables<48 * kKiB>, 1, kThreads, 0, nullptr); },
                  "take 49168 bytes, nvcc takes 49152"));
  // A launch has as much as its device, which variables count against.
  CHECK_EQ(launch(take_variables<16 * kKiB - 16>, 1, kThreads, 83 * kKiB, nullptr), cudaSuccess);
  CHECK(ends_with([] { launch(take_variables<16 * kKiB>, 1, kThreads, 83 * kKiB, nullptr); },
                  "the launch may have 101376"));
  CHECK_EQ(launch(take_variables<16>, 1, kThreads, 99 * kKiB + 1, nullptr), cudaErrorInvalidValue);
  // Up to 48 KiB none is asked for, so both together get no more.
  CHECK(ends_with([] { launch(take_variables<32 * kKiB>, 1, kThreads, 20 * kKiB, nullptr); },
                  "the launch may have 49152"));
}

void grids_have_limits() {
  CHECK_EQ(launch(wait_in_divergent_code, dim3(1, 65536), kThreads, 0, nullptr),
           cudaErrorInvalidValue);
  CHECK_EQ(launch(wait_in_divergent_code, 0, kThreads, 0, nullptr), cudaErrorInvalidValue);
  CHECK_EQ(launch(wait_in_divergent_code, 1, 1056, 0, nullptr), cudaErrorInvalidValue);
  CHECK(ends_with([] { launch(wait_in_divergent_code, 1, kThreads, 0, nullptr); },
                  "waits for itself"));
}

}  // namespace

int main() {
  orders_differ();
  missing_barriers_show();
  waiting_for_too_few_copies_shows();
  aligned_instructions_need_their_warp();
  shared_memory_is_poisoned();
  shared_memory_has_limits();
  grids_have_limits();
  return check_result();
}
