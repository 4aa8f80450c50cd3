// Scratch states of a rollout's passes; tests/executor/test_pass_rollout.py walks many trees over them.
#include <trtspec/beam_states.hpp>

#include <utility>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::BeamRows;
using trtspec::BeamStates;
using Ints = std::vector<std::int64_t>;
using Slots = std::vector<std::int32_t>;

BeamRows beam(Ints rows_above) {
  return {.width = 0,
          .depth = 0,
          .tokens = {},
          .positions = {},
          .slots = {},
          .masks = {},
          .rows_above = std::move(rows_above),
          .starts = {},
          .context_lens = {}};
}

// One copy, then none.
void test_chain() {
  BeamStates states(Slots{3}, 10);
  const BeamStates::Pass first = states.next(beam({0}));
  CHECK(first.slots == Slots{9});
  CHECK(first.from == Ints{3});
  CHECK(first.to == Ints{9});
  const BeamStates::Pass second = states.next(beam({0}));
  CHECK(second.slots == Slots{9});
  CHECK(second.from.empty());
}

// Two requests of two rows: of the first one both children have one parent, the other's state is free.
void test_tree() {
  BeamStates states(Slots{0, 1}, 8);
  const BeamStates::Pass first = states.next(beam({0, 0, 1, 1}));
  CHECK(first.slots == (Slots{7, 6, 5, 4}));
  CHECK(first.from == (Ints{0, 0, 1, 1}));
  const BeamStates::Pass second = states.next(beam({1, 1, 3, 2}));
  CHECK(second.slots == (Slots{6, 7, 4, 5}));
  CHECK(second.from == Ints{6});
  CHECK(second.to == Ints{7});
}

// Rows of nobody have none, and copy none.
void test_padding() {
  BeamStates states(Slots{2, -1}, 5);
  const BeamStates::Pass first = states.next(beam({0, 1}));
  CHECK(first.slots == (Slots{4, -1}));
  CHECK(first.from == Ints{2});
  CHECK(states.next(beam({0, 1})).slots == (Slots{4, -1}));
}

}  // namespace

int main() {
  test_chain();
  test_tree();
  test_padding();
  return check_result();
}
