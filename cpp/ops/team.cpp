#include <omp.h>
#include <trtspec/memory_nodes.hpp>
#include <trtspec/team.hpp>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace trtspec {

namespace {

constexpr std::int64_t kAheadBytes = std::int64_t{16} << 20;  // a part of a third-level cache
constexpr std::size_t kAheadPieces = 8;                       // weights that these may be of
constexpr std::int64_t kSliceBytes = 2048;                    // fetched between looks for a task
constexpr std::int64_t kLineBytes = 64;
constexpr auto kSpin = std::chrono::milliseconds(1);
constexpr int kLooks = 64;  // for a task between looks at the clock

thread_local bool is_member = false;  // or within a region

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Weights in memory, and where those begin that were read behind them the last time; 0: unknown.
struct Weights {
  std::uintptr_t first = 0;
  std::int64_t bytes = 0;
  std::uintptr_t follower = 0;
};

// Which weights followed which, by a hash of their addresses: a wrong answer costs a little time.
class Followers {
 public:
  // Weights are read now, behind those of the last call.
  void note(std::uintptr_t first, std::int64_t bytes) {
    Weights& last = slot(last_);
    if (last.first == last_) last.follower = first;
    Weights& own = slot(first);
    if (own.first != first) own = {first, bytes};
    last_ = first;
  }

  // What is known of the weights that begin there, or null.
  const Weights* find(std::uintptr_t first) {
    const Weights& found = slot(first);
    return first != 0 && found.first == first ? &found : nullptr;
  }

 private:
  Weights& slot(std::uintptr_t first) { return all_[(first * 0x9e3779b97f4a7c15u) >> 54]; }

  std::uintptr_t last_ = 0;
  std::array<Weights, 1 << 10> all_{};
};

// Memory to fetch, in the order in which it will be read. One thread says what, while others take
// slices: who sees a half of each of two answers fetches something else, which does no harm.
class Ahead {
 public:
  // What the last time came behind the weights that begin there.
  void point_behind(std::uintptr_t first, Followers& followers) {
    std::int64_t end = 0;
    const Weights* own = followers.find(first);
    for (std::size_t piece = 0; piece < kAheadPieces && end < kAheadBytes; ++piece) {
      own = own == nullptr ? nullptr : followers.find(own->follower);
      if (own == nullptr) break;
      bases_[piece].store(own->first - std::uintptr_t(end), std::memory_order_relaxed);
      end += own->bytes;
      ends_[piece].store(end, std::memory_order_relaxed);
    }
    end_.store(end < kAheadBytes ? end : kAheadBytes, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_relaxed);
  }

  // Fetches a slice; whether there was one left.
  bool fetch_slice() {
    if (taken_.load(std::memory_order_relaxed) >= end_.load(std::memory_order_relaxed)) {
      return false;
    }
    const std::int64_t first = taken_.fetch_add(kSliceBytes, std::memory_order_relaxed);
    std::size_t piece = 0;
    while (piece + 1 < kAheadPieces && first >= ends_[piece].load(std::memory_order_relaxed)) {
      ++piece;
    }
    const auto* slice = reinterpret_cast<const char*>(
        bases_[piece].load(std::memory_order_relaxed) + std::uintptr_t(first));
    for (std::int64_t i = 0; i < kSliceBytes; i += kLineBytes) {
      __builtin_prefetch(slice + i, 0, 2);
    }
    return true;
  }

 private:
  // Of each piece: where it would begin if it had all before it in front, and what ends with it.
  std::array<std::atomic<std::uintptr_t>, kAheadPieces> bases_{};
  std::array<std::atomic<std::int64_t>, kAheadPieces> ends_{};
  std::atomic<std::int64_t> end_{0};
  alignas(kLineBytes) std::atomic<std::int64_t> taken_{0};
};

// Consecutive tasks of a region that nobody has claimed: the first in the low half, and where they
// end in the high one. Whoever claims one keeps the region from ending until it is done, so what
// describes the region can be read then.
class alignas(kLineBytes) Share {
 public:
  void give(std::int64_t first, std::int64_t end) {
    tasks_.store(static_cast<std::uint64_t>(end) << 32 | static_cast<std::uint64_t>(first),
                 std::memory_order_release);
  }

  // The first or the last of them, or -1 if there is none.
  std::int64_t claim(bool first) {
    std::uint64_t tasks = tasks_.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t next = tasks & 0xffffffff, end = tasks >> 32;
      if (next == end) return -1;
      const std::uint64_t left = first ? tasks + 1 : tasks - (std::uint64_t{1} << 32);
      if (tasks_.compare_exchange_weak(tasks, left, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        return static_cast<std::int64_t>(first ? next : end - 1);
      }
    }
  }

 private:
  std::atomic<std::uint64_t> tasks_{0};
};

class Team {
 public:
  Team(int threads, const MemoryNodes& nodes)
      : process_(::getpid()), nodes_(nodes), shares_(static_cast<std::size_t>(threads)) {
    for (int thread = 1; thread < threads; ++thread) {
      members_.emplace_back([this, thread] { serve(thread); });
    }
  }

  ~Team() {
    ending_.store(true);
    region_.fetch_add(1);
    region_.notify_all();
    for (std::thread& member : members_) {
      // The threads of a process do not follow it into its forks.
      process_ == ::getpid() ? member.join() : member.detach();
    }
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(shares_.size()); }

  void run(std::int64_t count, Task task, const void* body) {
    task_ = task;
    body_ = body;
    done_.store(0, std::memory_order_relaxed);
    for (std::int64_t thread = 0; thread < size(); ++thread) {
      shares_[std::size_t(thread)].give(count * thread / size(), count * (thread + 1) / size());
    }
    region_.fetch_add(1);
    if (asleep_.load() > 0) region_.notify_all();
    const std::int64_t own = take_tasks(0);
    while (done_.load(std::memory_order_acquire) + own < count) {
      if (!ahead_.fetch_slice()) pause();
    }
  }

  void read_next(std::uintptr_t first, std::int64_t bytes) {
    followers_.note(first, bytes);
    ahead_.point_behind(first, followers_);
  }

 private:
  // How many tasks this thread took until there was none left: its own from the first on, and then
  // those of others from the last on, which they would have come to last.
  std::int64_t take_tasks(int thread) {
    std::int64_t taken = 0;
    for (int i = 0; i < size(); ++i) {
      Share& share = shares_[std::size_t((thread + i) % size())];
      for (std::int64_t task; (task = share.claim(i == 0)) >= 0; ++taken) {
        task_(body_, task, thread);
      }
    }
    return taken;
  }

  void serve(int thread) {
    is_member = true;
    stay_at_node(thread, size(), nodes_);
    while (!ending_.load(std::memory_order_relaxed)) {
      const std::uint32_t region = region_.load(std::memory_order_acquire);
      if (const std::int64_t taken = take_tasks(thread)) {
        done_.fetch_add(taken, std::memory_order_release);
      }
      wait(region);
    }
  }

  // Until another region begins, or the team ends.
  void wait(std::uint32_t region) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int look = 0; look < kLooks; ++look) {
        if (region_.load(std::memory_order_relaxed) != region) return;
        if (!ahead_.fetch_slice()) pause();
      }
    } while (std::chrono::steady_clock::now() < until);
    asleep_.fetch_add(1);
    if (!ending_.load()) region_.wait(region);
    asleep_.fetch_sub(1);
  }

  const pid_t process_;
  const MemoryNodes nodes_;
  std::vector<std::thread> members_;
  Followers followers_;
  Ahead ahead_;
  Task task_ = nullptr;
  const void* body_ = nullptr;
  std::atomic<bool> ending_{false};
  std::atomic<int> asleep_{0};
  std::vector<Share> shares_;                                 // of every thread
  alignas(kLineBytes) std::atomic<std::uint32_t> region_{0};  // rises once tasks are given out
  alignas(kLineBytes) std::atomic<std::int64_t> done_{0};
};

thread_local std::unique_ptr<Team> team;
// Where its threads may be: found out once, as the thread itself stays at one of them from then on.
thread_local const MemoryNodes own_nodes = memory_nodes();
thread_local int taken_threads = 0;  // none: as many as OpenMP has

}  // namespace

int max_threads() {
  if (is_member) return 1;
  return taken_threads > 0 ? taken_threads : omp_get_max_threads();
}

void take_threads(int count) {
  taken_threads = count;
  omp_set_num_threads(1);
  stay_at_node(0, count, own_nodes);
}

void run_tasks(std::int64_t count, int threads, Task task, const void* body) {
  if (team == nullptr || team->size() != threads) {
    team.reset();
    team = std::make_unique<Team>(threads, own_nodes);
  }
  is_member = true;
  team->run(count, task, body);
  is_member = false;
}

void read_next(const void* weights, std::int64_t bytes) {
  if (team == nullptr || is_member) return;
  team->read_next(reinterpret_cast<std::uintptr_t>(weights), bytes);
}

}  // namespace trtspec
