// Trees grown pass by pass against values written by hand; tests/executor/test_pass_rollout.py grows
// many more.
#include <trtspec/tree_growth.hpp>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::BeamRows;
using trtspec::DraftNodes;
using trtspec::Levels;
using trtspec::RolloutRoot;
using trtspec::StopRule;
using trtspec::TreeGrowth;
using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

// Blocks of 4 tokens; the root is token 5 of its text, so that the next row fills block 7.
const std::vector<std::int32_t> kBlocks = {3, 7, 9, -1};
const std::vector<RolloutRoot> kRoots = {{.position = 5, .blocks = kBlocks}};

void test_rows() {
  const Levels levels({.topk = 2, .num_steps = 3, .num_draft_tokens = 6});
  TreeGrowth growth(levels, kRoots, 4, 1);
  growth.record(Ints{10, 11}, Floats{-1, -2}, 2);
  CHECK(growth.can_go_on());
  CHECK_EQ(growth.next_rows(), 2);
  const BeamRows first = growth.next();
  CHECK(first.tokens == (Ints{10, 11}));
  CHECK(first.positions == (Ints{6, 6}));
  CHECK(first.slots == (Ints{7 * 4 + 2, 7 * 4 + 3}));
  CHECK(first.masks == (Ints{0b01, 0b10}));
  CHECK(first.context_lens == (std::vector<std::int32_t>{6}));
  growth.record(Ints{20, 21, 22, 23}, Floats{-1, -3, -0.5F, -4}, 2);
  const BeamRows second = growth.next();  // scores -2, -4, -2.5, -6
  CHECK(second.tokens == (Ints{20, 22}));
  CHECK(second.positions == (Ints{7, 7}));
  CHECK(second.slots == (Ints{9 * 4, 9 * 4 + 1}));
  CHECK(second.masks == (Ints{0b0101, 0b1010}));
  CHECK(second.rows_above == (Ints{0, 1}));
  growth.record(Ints{30, 31, 32, 33}, Floats{-9, -9, -0.25F, -9}, 2);
  CHECK(!growth.can_go_on());
  const DraftNodes tree = growth.trees().front();
  CHECK(tree.tokens == (Ints{10, 11, 20, 22, 32}));
  CHECK(tree.parents == (Ints{-1, -1, 0, 1, 3}));
  CHECK(tree.scores == (Floats{-1, -2, -2, -2.5F, -2.75F}));
}

// Rows before the root were let go: it lies in their place.
void test_gap() {
  const Levels levels({.topk = 1, .num_steps = 2, .num_draft_tokens = 3});
  const std::vector<RolloutRoot> behind = {{.position = 45, .blocks = kBlocks, .gap = 40}};
  TreeGrowth growth(levels, behind, 4, 1);
  growth.record(Ints{10}, Floats{0}, 1);
  const BeamRows beam = growth.next();
  CHECK(beam.positions == Ints{46});
  CHECK(beam.slots == Ints{7 * 4 + 2});
  CHECK(beam.context_lens == std::vector<std::int32_t>{6});
}

void test_stops() {
  const Levels levels({.topk = 1, .num_steps = 4, .num_draft_tokens = 5});
  TreeGrowth shallow(levels, kRoots, 4, 1, {.max_depth = 1});
  shallow.record(Ints{10}, Floats{0}, 1);
  CHECK(!shallow.can_go_on());
  CHECK_EQ(shallow.trees().front().size(), 1);

  TreeGrowth sure(levels, kRoots, 4, 1, {.p_min = 0.5});
  sure.record(Ints{10}, Floats{std::log(0.6F)}, 1);
  CHECK(sure.can_go_on());
  sure.next();
  sure.record(Ints{11}, Floats{std::log(0.4F)}, 1);
  CHECK(!sure.can_go_on());
  CHECK(std::isinf(sure.trees().front().scores.back()));

  // A tenth of a second brings 4 tokens otherwise, a pass less than 1.
  TreeGrowth hurried(levels, kRoots, 4, 1, {.pace = 40.0});
  hurried.record(Ints{10}, Floats{std::log(0.6F)}, 1);
  CHECK(hurried.can_go_on() && !hurried.pays(0.1) && hurried.pays(0.01));
  // As its nodes fared, one of that probability is never right.
  TreeGrowth warned(levels, kRoots, 4, 1,
                    {.pace = 40.0, .gains = Floats(3, -9.0F), .num_levels = 3});
  warned.record(Ints{10}, Floats{std::log(0.6F)}, 1);
  CHECK(warned.can_go_on() && !warned.pays(0.01));
}

void test_blocks() {
  const Levels levels({.topk = 1, .num_steps = 2, .num_draft_tokens = 3});
  const std::vector<std::int32_t> one = {3, -1}, none = {-1, -1};
  const std::vector<RolloutRoot> full = {{.position = 3, .blocks = one}};
  TreeGrowth beyond(levels, full, 4, 1);
  beyond.record(Ints{10}, Floats{0}, 1);
  bool refused = false;
  try {
    beyond.next();
  } catch (const std::logic_error&) {
    refused = true;
  }
  CHECK(refused);
  const std::vector<RolloutRoot> padding = {{.position = 0, .blocks = none}};
  TreeGrowth padded(levels, padding, 4, 1);
  padded.record(Ints{10}, Floats{0}, 1);
  CHECK(padded.next().slots == (Ints{-1}));
}

}  // namespace

int main() {
  test_rows();
  test_gap();
  test_stops();
  test_blocks();
  return check_result();
}
