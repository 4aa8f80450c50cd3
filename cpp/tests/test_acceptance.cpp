#include <trtspec/acceptance.hpp>

#include <algorithm>
#include <vector>

#include "check.hpp"

namespace {

using Ids = std::vector<std::int64_t>;
using Ints = std::vector<std::int32_t>;

void three_requests_in_one_call() {
  // Root -> {7, 8}, 8 -> 9; no rows; only a root.
  const Ids sampled{8, 0, 9, 4, 6};
  const Ids tokens{0, 7, 8, 9, 0};
  const Ints parents{-1, 0, 0, 2, -1};
  const Ints starts{0, 4, 4, 5};
  Ints rows(12, -2), count(3, -2);
  CHECK_EQ(trtspec::accept(sampled.data(), tokens.data(), parents.data(), starts.data(), 3, 4,
                           rows.data(), count.data()),
           -1);
  const Ints expected{0, 2, 3, -1, -1, -1, -1, -1, 0, -1, -1, -1};
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK_EQ(rows[i], expected[i]);
  CHECK(count == Ints({3, 0, 1}));
}

void forced_walks_take_so_many_nodes() {
  // Root -> {7, 8}, 8 -> 9, 7 -> 5, 5 -> 6; nothing that was sampled is drafted.
  const Ids tokens{0, 7, 8, 9, 5, 6};
  const Ints parents{-1, 0, 0, 2, 1, 4}, starts{0, 6};
  const auto walk = [&](std::int32_t nodes, std::int64_t sampled) {
    const Ids all(6, sampled);
    Ints rows(6), count(1);
    CHECK_EQ(trtspec::accept(all.data(), tokens.data(), parents.data(), starts.data(), 1, 6,
                             rows.data(), count.data(), &nodes),
             -1);
    CHECK(std::all_of(rows.begin() + count[0], rows.end(), [](auto row) { return row == -1; }));
    rows.resize(std::size_t(count[0]));
    return rows;
  };
  CHECK(walk(0, 40) == Ints({0}));
  CHECK(walk(1, 40) == Ints({0, 1}));
  CHECK(walk(2, 40) == Ints({0, 2, 3}));  // the first row of that depth
  CHECK(walk(9, 40) == Ints({0, 1, 4, 5}));
  CHECK(walk(-1, 8) == Ints({0, 2}));  // not forced
  CHECK(walk(3, -1) == Ints({0}));     // a broken row
}

void a_malformed_request_is_named() {
  const Ids ids(3, 0);
  const Ints starts{0, 1, 3};
  Ints rows(4), count(2);
  for (const std::int32_t parent : {-1, 1, 5}) {
    const Ints parents{-1, -1, parent};
    CHECK_EQ(trtspec::accept(ids.data(), ids.data(), parents.data(), starts.data(), 2, 2,
                             rows.data(), count.data()),
             1);
  }
}

}  // namespace

int main() {
  three_requests_in_one_call();
  forced_walks_take_so_many_nodes();
  a_malformed_request_is_named();
  return check_result();
}
