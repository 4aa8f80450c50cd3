#include <sys/mman.h>
#include <trtspec/error.hpp>
#include <trtspec/rank_group.hpp>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"

using trtspec::RankGroup;

namespace {

// Ranks in threads of this process, over memory that they share as processes do.
struct Ranks {
  explicit Ranks(int ranks) {
    const int memory = ::memfd_create("ranks", 0);
    CHECK_EQ(::ftruncate(memory, RankGroup::memory_bytes(ranks)), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      groups.push_back(std::make_unique<RankGroup>(memory, rank, ranks, 20.0));
    }
    ::close(memory);
  }

  template <class Call>
  void run(const Call& call) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < int(groups.size()); ++rank) {
      threads.emplace_back([&, rank] { call(rank, *groups[std::size_t(rank)]); });
    }
    for (std::thread& each : threads) each.join();
  }

  std::vector<std::unique_ptr<RankGroup>> groups;
};

}  // namespace

int main() {
  // More than a place holds, so that several pieces follow each other; in place.
  constexpr std::int64_t kCount = 700'001;
  Ranks three(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(kCount));
  for (int rank = 0; rank < 3; ++rank) {
    for (std::int64_t i = 0; i < kCount; ++i) values[rank][i] = float(i % 1000) * float(rank + 1);
  }
  three.run([&](int rank, RankGroup& group) {
    float* own = values[std::size_t(rank)].data();
    group.all_reduce(own, own, kCount, trtspec::DType::f32);
  });
  bool right = true;
  for (const auto& sums : values) {
    for (std::int64_t i = 0; i < kCount; ++i) right = right && sums[i] == float(i % 1000) * 6.0f;
  }
  CHECK(right);

  // Rows of two columns a rank, cut behind the fifth.
  std::vector<std::vector<float>> rows(3, std::vector<float>(2 * 5));
  three.run([&](int rank, RankGroup& group) {
    const float base = float(10 * rank);
    const std::vector<float> own{base, base + 1, base + 2, base + 3};
    group.all_gather(own.data(), rows[std::size_t(rank)].data(), 2, 2, 5);
  });
  for (const auto& row : rows) {
    CHECK((row == std::vector<float>{0, 1, 10, 11, 20, 2, 3, 12, 13, 22}));
  }

  float one = 1.0f;
  std::thread waits(
      [&] { CHECK_THROWS(three.groups[0]->all_reduce(&one, &one, 1, trtspec::DType::f32)); });
  three.groups[1]->end();
  waits.join();
  CHECK_THROWS(three.groups[2]->all_reduce(&one, &one, 1, trtspec::DType::f32));
  CHECK_THROWS(RankGroup(-1, 0, 2, 1.0));
  return check_result();
}
