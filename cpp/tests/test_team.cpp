#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "parallel.hpp"

using trtspec::base::parallel_for;

namespace {

// Whether every task of a region is run exactly once, by a thread that there is.
bool runs_all(std::int64_t tasks, int threads) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
  std::atomic<bool> strange{false};
  parallel_for(tasks, threads, [&](std::int64_t task, int thread) {
    if (task < 0 || task >= tasks || thread < 0 || thread >= threads) {
      strange = true;
      return;
    }
    ++runs[static_cast<std::size_t>(task)];
  });
  bool each_once = !strange;
  for (const auto& count : runs) each_once = each_once && count == 1;
  return each_once;
}

// What a region writes is seen by its caller, and by the next region.
bool adds_up(int regions, int threads) {
  std::vector<std::int64_t> sums(37, 0);
  for (int region = 0; region < regions; ++region) {
    parallel_for(std::int64_t(sums.size()), threads,
                 [&](std::int64_t i, int) { sums[std::size_t(i)] += i + region; });
  }
  bool right = true;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    right =
        right && sums[i] == regions * std::int64_t(i) + std::int64_t(regions) * (regions - 1) / 2;
  }
  return right;
}

void test_every_task_runs_once() {
  for (const int threads : {1, 2, 3, 2}) {
    for (const std::int64_t tasks : {0, 1, 2, 3, 100, 10000}) CHECK(runs_all(tasks, threads));
    CHECK(adds_up(20000, threads));
  }
}

// Whether tasks went up by one from `first` on, and then down by one from `last` on.
bool goes_up_then_down(const std::vector<std::int64_t>& tasks, std::int64_t first,
                       std::int64_t last) {
  std::size_t i = 0;
  while (i < tasks.size() && tasks[i] == first + std::int64_t(i)) ++i;
  for (std::size_t up = i; i < tasks.size(); ++i) {
    if (tasks[i] != last - std::int64_t(i - up)) return false;
  }
  return true;
}

// A thread reads its share in order, and then what others would come to last.
void test_shares_are_of_one_piece() {
  constexpr std::int64_t kTasks = 1001, kHalf = kTasks / 2;
  for (int region = 0; region < 200; ++region) {
    std::vector<std::int64_t> taken[2];
    for (auto& tasks : taken) tasks.reserve(kTasks);
    parallel_for(kTasks, 2, [&](std::int64_t task, int thread) { taken[thread].push_back(task); });
    CHECK_EQ(std::int64_t(taken[0].size() + taken[1].size()), kTasks);
    CHECK(goes_up_then_down(taken[0], 0, kTasks - 1));
    CHECK(goes_up_then_down(taken[1], kHalf, kHalf - 1));
  }
}

// Long enough that the team sleeps between regions; the caller has all tasks where nobody wakes.
void test_a_sleeping_team_is_woken() {
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(runs_all(5, 3));
  }
}

void test_no_region_within_a_region() {
  std::atomic<int> most{0};
  CHECK(trtspec::max_threads() == omp_get_max_threads());
  parallel_for(8, 2, [&](std::int64_t, int) {
    if (trtspec::max_threads() > most) most = trtspec::max_threads();
  });
  CHECK_EQ(most.load(), 1);
  CHECK(trtspec::max_threads() == omp_get_max_threads());
}

void test_callers_have_their_own_teams() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      if (!adds_up(2000, 2)) ++wrong;
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(wrong.load(), 0);
}

void test_reading_ahead_needs_no_memory() {
  std::vector<char> weights(1 << 16);
  for (int call = 0; call < 100; ++call) {
    for (std::size_t i = 0; i < 8; ++i) {
      trtspec::read_next(weights.data() + 8192 * i, 100 << i);  // most of what follows is not there
      CHECK(runs_all(3, 2));
    }
  }
  auto gone = std::make_unique<char[]>(1 << 20);
  trtspec::read_next(gone.get(), 1 << 20);
  trtspec::read_next(weights.data(), 8192);
  gone.reset();
  for (int call = 0; call < 10; ++call) CHECK(runs_all(3, 2));
}

void test_a_fork_works_alone() {
  CHECK(runs_all(10, 2));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool right = runs_all(10, 2) && runs_all(10, 3);  // ends the team that did not follow
    std::_Exit(right ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

}  // namespace

int main() {
  test_every_task_runs_once();
  test_shares_are_of_one_piece();
  test_a_sleeping_team_is_woken();
  test_no_region_within_a_region();
  test_callers_have_their_own_teams();
  test_reading_ahead_needs_no_memory();
  test_a_fork_works_alone();
  return check_result();
}
