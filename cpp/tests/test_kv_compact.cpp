#include <trtspec/kv_compact.hpp>

#include <numeric>
#include <vector>

#include "check.hpp"

int main() {
  std::vector<std::int64_t> first(10);
  std::iota(first.begin(), first.end(), 0);
  std::vector<std::int64_t> second = first;
  void* const caches[] = {first.data(), second.data()};
  const auto move = [&](std::vector<std::int64_t> src, std::vector<std::int64_t> dst) {
    trtspec::kv_compact(caches, 2, sizeof(std::int64_t), 10, src.data(), dst.data(),
                        std::int64_t(src.size()));
  };
  move({5, 7, 8, -1}, {4, 5, 6, 9});
  CHECK((first == std::vector<std::int64_t>{0, 1, 2, 3, 5, 7, 8, 7, 8, 9}));
  CHECK(first == second);
  move({1, 2, 0}, {2, 0, 1});
  CHECK((first == std::vector<std::int64_t>{2, 0, 1, 3, 5, 7, 8, 7, 8, 9}));
  const std::vector<std::int64_t> before = first;
  CHECK_THROWS(move({1, 10}, {2, 3}));
  CHECK_THROWS(move({1, 2}, {3, 3}));
  CHECK(first == before);
  return check_result();
}
