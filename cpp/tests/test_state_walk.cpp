#include <trtspec/causal_conv.hpp>
#include <trtspec/gated_delta.hpp>

#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "state_trees.hpp"
#include "state_walk.hpp"

namespace {

using trtspec::StatePath;
using trtspec::StatePlan;
using trtspec::StateStep;
using trtspec::StateWalk;
using trtspec::test::noise;
using Trees = trtspec::test::StateTrees;
using Floats = std::vector<float>;

// Every row starts from the copy that its parent left, and only the root changes what stays.
void plans_follow_the_tree() {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    const Trees trees(rng, 3, 90);
    const StateWalk walk = trees.walk();
    trtspec::check_walk(walk, "test");
    const auto parents = trtspec::parents_of(walk);
    const StatePlan plan = trtspec::plan_walk(walk);
    CHECK_EQ(plan.paths.size(), std::size_t(3));
    for (std::size_t b = 0; b < 3; ++b) {
      const StatePath& path = plan.paths[b];
      CHECK_EQ(path.certain, 1);
      CHECK_EQ(path.slot, trees.slots[b]);
      CHECK_EQ(path.is_new, trees.contexts[b] == 0);
      CHECK_EQ(path.count, trees.starts[b + 1] - trees.starts[b]);
      std::vector<std::int64_t> holder(std::size_t(plan.copies), -1);  // which row left a copy
      for (std::int64_t i = 0; i < path.count; ++i) {
        const StateStep& step = path.steps[i];
        const std::int64_t place = step.row - trees.starts[b];
        const std::int64_t parent =
            place == 0 ? -1 : trees.starts[b] + trees.parents[b][std::size_t(place - 1)];
        CHECK_EQ(parents[std::size_t(step.row)], parent);
        CHECK_EQ(holder[std::size_t(step.from)], parent);
        holder[std::size_t(step.to)] = step.row;
      }
    }
  }
}

void chains_need_one_copy() {
  std::vector<std::int64_t> masks;
  for (int i = 0; i < 64; ++i) masks.push_back(std::int64_t((std::uint64_t{2} << i) - 1));
  const std::int32_t slot = 0, context = 3, starts[2] = {0, 64};
  const bool is_tree = true;
  const StatePlan plan =
      trtspec::plan_walk({64, 1, 1, 64, 1, &slot, starts, &context, &is_tree, masks.data()});
  CHECK_EQ(plan.copies, 1);
  CHECK_EQ(plan.steps.size(), std::size_t(64));
}

// A row of a tree is that of its path as a chain of certain rows, to the bit.
void trees_are_their_paths() {
  std::mt19937 rng(2);
  constexpr std::int64_t kHeads = 3, kKey = 20, kValue = 70, kWidth = 4;
  constexpr std::int64_t kChannels = 2 * kKey + kHeads * kValue, kOut = kHeads * kValue;
  for (int round = 0; round < 5; ++round) {
    const Trees trees(rng, 1, 20);
    const std::int64_t rows = trees.rows();
    const Floats x = noise(rng, rows * kChannels), gates = noise(rng, rows * 2 * kHeads);
    const Floats weight = noise(rng, kWidth * kChannels), constants = noise(rng, 2 * kHeads);
    const Floats tail = noise(rng, 2 * (kWidth - 1) * kChannels);
    const Floats state = noise(rng, 2 * kHeads * kKey * kValue);
    const auto run = [&](const StateWalk& walk, const Floats& in, const Floats& own_gates) {
      Floats tails = tail, states = state, mixed(in.size()), kept(in.size()), kept_gates(own_gates);
      Floats out(std::size_t(walk.rows * kOut));
      trtspec::causal_conv({.x = in.data(),
                            .x_row_stride = kChannels,
                            .weight = weight.data(),
                            .bias = nullptr,
                            .tail = tails.data(),
                            .kept = kept.data(),
                            .out = mixed.data(),
                            .dtype = trtspec::DType::f32,
                            .channels = kChannels,
                            .width = kWidth,
                            .walk = walk});
      trtspec::gated_delta({.qkv = mixed.data(),
                            .gates = own_gates.data(),
                            .kept = kept_gates.data(),
                            .out = out.data(),
                            .dtype = trtspec::DType::f32,
                            .a_log = constants.data(),
                            .dt_bias = constants.data() + kHeads,
                            .state = states.data(),
                            .key_heads = 1,
                            .value_heads = kHeads,
                            .tiled = false,
                            .key_dim = kKey,
                            .value_dim = kValue,
                            .walk = walk});
      return out;
    };
    const Floats together = run(trees.walk(), x, gates);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<std::int64_t> path = trees.path_to(row);
      Floats own, own_gates;
      for (const std::int64_t at : path) {
        own.insert(own.end(), x.begin() + at * kChannels, x.begin() + (at + 1) * kChannels);
        own_gates.insert(own_gates.end(), gates.begin() + at * 2 * kHeads,
                         gates.begin() + (at + 1) * 2 * kHeads);
      }
      const auto count = std::int64_t(path.size());
      const std::vector<std::int64_t> blind(path.size(), 0);
      const std::int32_t starts[2] = {0, std::int32_t(count)};
      const bool is_tree = false;
      const Floats alone = run({count, 1, 2, 0, 1, trees.slots.data(), starts,
                                trees.contexts.data(), &is_tree, blind.data()},
                               own, own_gates);
      CHECK_EQ(std::memcmp(alone.data() + (count - 1) * kOut, together.data() + row * kOut,
                           kOut * sizeof(float)),
               0);
    }
  }
}

void malformed_walks_are_refused() {
  std::mt19937 rng(3);
  Trees trees(rng, 2, 5);
  const auto refused = [&](auto change) {
    Trees broken = trees;
    change(broken);
    CHECK_THROWS(trtspec::check_walk(broken.walk(), "test"));
  };
  refused([](Trees& t) { t.slots[0] = 3; });
  refused([](Trees& t) { t.slots[1] = t.slots[0]; });
  refused([](Trees& t) { t.starts[1] = t.starts[2] + 1; });
  refused([](Trees& t) { t.starts[0] = 1; });
}

}  // namespace

int main() {
  plans_follow_the_tree();
  chains_need_one_copy();
  trees_are_their_paths();
  malformed_walks_are_refused();
  return check_result();
}
