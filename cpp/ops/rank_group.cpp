#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/rank_group.hpp>

#include "simd.hpp"

namespace trtspec {
namespace {

constexpr int kMostRanks = 64;
// Put at a place at once. Smaller pieces of a long prompt would wait more often, larger ones push
// more of the weights out of the caches.
constexpr std::int64_t kPlaceBytes = std::int64_t{1} << 20;
constexpr std::int64_t kLineBytes = 64;
// A call that waits looks after so long whether the group was ended, in case that went unheard: it
// was ended between the look and the sleep.
constexpr std::timespec kLook{0, 100'000'000};

using Mark = std::atomic<std::uint32_t>;
static_assert(Mark::is_always_lock_free && sizeof(Mark) == sizeof(std::uint32_t));

// Futexes of memory that processes share, which std::atomic's own waits are not.
void wake(Mark& mark) { ::syscall(SYS_futex, &mark, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void sleep_while(Mark& mark, std::uint32_t value) {
  ::syscall(SYS_futex, &mark, FUTEX_WAIT, value, &kLook, nullptr, 0);
}

template <class T>
void add(const char* x, float* sums, std::int64_t count, bool first) {
  const auto* from = reinterpret_cast<const T*>(x);
  std::int64_t i = 0;
  for (; i + base::kLanes <= count; i += base::kLanes) {
    const base::VF value = base::load(from + i);
    base::store(sums + i, first ? value : base::load(sums + i) + value);
  }
  for (; i < count; ++i) sums[i] = (first ? 0.0f : sums[i]) + base::to_float(from[i]);
}

template <class T>
void round(const float* sums, char* out, std::int64_t count) {
  auto* to = reinterpret_cast<T*>(out);
  std::int64_t i = 0;
  for (; i + base::kLanes <= count; i += base::kLanes) base::store(to + i, base::load(sums + i));
  for (; i < count; ++i) base::from_float(sums[i], to + i);
}

}  // namespace

struct RankGroup::Shared {
  struct alignas(kLineBytes) Arrival {
    Mark step;  // the last exchange that a rank came to
  };

  Mark ended;
  Arrival arrivals[kMostRanks];
};

std::int64_t RankGroup::memory_bytes(int ranks) {
  return std::int64_t(sizeof(Shared)) + ranks * 2 * kPlaceBytes;
}

RankGroup::RankGroup(int memory, int rank, int ranks, double patience)
    : rank_(rank), ranks_(ranks), patience_(patience) {
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    throw Error("rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                " ranks; there may be 1 to " + std::to_string(kMostRanks));
  }
  void* mapped = ::mmap(nullptr, std::size_t(memory_bytes(ranks)), PROT_READ | PROT_WRITE,
                        MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) {
    throw Error(std::string("the memory that ranks share cannot be mapped: ") +
                std::strerror(errno));
  }
  shared_ = static_cast<Shared*>(mapped);
}

RankGroup::~RankGroup() { ::munmap(shared_, std::size_t(memory_bytes(ranks_))); }

char* RankGroup::place(int rank, std::uint32_t parity) const {
  return reinterpret_cast<char*>(shared_ + 1) + (2 * rank + std::int64_t(parity)) * kPlaceBytes;
}

void RankGroup::require_running() const {
  if (shared_->ended.load(std::memory_order_acquire) != 0) {
    throw Error("the group of " + std::to_string(ranks_) + " ranks has ended");
  }
}

void RankGroup::wait_for(int rank) const {
  Mark& mark = shared_->arrivals[rank].step;
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    const std::uint32_t step = mark.load(std::memory_order_acquire);
    if (std::int32_t(step - step_) >= 0) return;
    require_running();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    if (waited.count() > patience_) {
      throw Error("rank " + std::to_string(rank) + " did not come to a step within " +
                  std::to_string(patience_) + " seconds");
    }
    sleep_while(mark, step);
  }
}

template <class Fill, class Read>
void RankGroup::exchange(const Fill& fill, const Read& read) {
  require_running();
  // Who comes to an exchange has read all of the one before. So the places of the last but one are
  // free, and two for each rank are enough.
  const std::uint32_t parity = ++step_ & 1u;
  fill(place(rank_, parity));
  Mark& own = shared_->arrivals[rank_].step;
  own.store(step_, std::memory_order_release);
  wake(own);
  for (int rank = 0; rank < ranks_; ++rank) wait_for(rank);
  read(parity);
}

void RankGroup::all_reduce(const void* x, void* out, std::int64_t count, DType dtype) {
  constexpr std::int64_t kAtOnce = 1024;  // sums that stay in the first-level cache
  const auto size = std::int64_t(size_of(dtype));
  const auto add_all = dtype == DType::f32    ? add<float>
                       : dtype == DType::bf16 ? add<bf16>
                                              : add<f16>;
  const auto round_all = dtype == DType::f32    ? round<float>
                         : dtype == DType::bf16 ? round<bf16>
                                                : round<f16>;
  const auto* from = static_cast<const char*>(x);
  auto* to = static_cast<char*>(out);
  for (std::int64_t begin = 0; begin < count; begin += kPlaceBytes / size) {
    const std::int64_t piece = std::min(kPlaceBytes / size, count - begin);
    exchange([&](char* own) { std::memcpy(own, from + begin * size, std::size_t(piece * size)); },
             [&](std::uint32_t parity) {
               for (std::int64_t i = 0; i < piece; i += kAtOnce) {
                 float sums[kAtOnce];
                 const std::int64_t part = std::min(kAtOnce, piece - i);
                 for (int rank = 0; rank < ranks_; ++rank) {
                   add_all(place(rank, parity) + i * size, sums, part, rank == 0);
                 }
                 round_all(sums, to + (begin + i) * size, part);
               }
             });
  }
}

void RankGroup::all_gather(const float* x, float* out, std::int64_t rows, std::int64_t columns,
                           std::int64_t width) {
  constexpr std::int64_t kAtOnce = kPlaceBytes / std::int64_t(sizeof(float));
  const std::int64_t count = rows * columns;
  for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
    const std::int64_t end = std::min(begin + kAtOnce, count);
    exchange(
        [&](char* own) { std::memcpy(own, x + begin, std::size_t(end - begin) * sizeof(float)); },
        [&](std::uint32_t parity) {
          for (int rank = 0; rank < ranks_; ++rank) {
            const auto* of_rank = reinterpret_cast<const float*>(place(rank, parity)) - begin;
            const std::int64_t first = rank * columns;  // in a row of out
            const std::int64_t kept = std::clamp<std::int64_t>(width - first, 0, columns);
            for (std::int64_t row = begin / columns; row * columns < end; ++row) {
              const std::int64_t from = std::max(row * columns, begin);
              const std::int64_t to = std::min(row * columns + kept, end);
              if (from < to) {
                std::copy(of_rank + from, of_rank + to,
                          out + row * width + first + (from - row * columns));
              }
            }
          }
        });
  }
}

void RankGroup::end() {
  shared_->ended.store(1, std::memory_order_release);
  for (int rank = 0; rank < ranks_; ++rank) wake(shared_->arrivals[rank].step);
}

}  // namespace trtspec
