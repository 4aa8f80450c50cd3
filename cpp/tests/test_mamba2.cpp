#include <trtspec/mamba2.hpp>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "state_trees.hpp"

namespace {

using trtspec::StateWalk;
using trtspec::test::noise;
using Trees = trtspec::test::StateTrees;
using Floats = std::vector<float>;

constexpr std::int64_t kHeads = 4, kHeadDim = 70, kGroups = 2, kSize = 11;
constexpr std::int64_t kInner = kHeads * kHeadDim, kMixed = kInner + 2 * kGroups * kSize;
constexpr std::int64_t kBeside = kInner + kHeads;  // the gate, then dt

struct World {
  Floats of_heads, state;

  explicit World(std::mt19937& rng)
      : of_heads(noise(rng, 3 * kHeads)), state(noise(rng, 2 * kSize * kInner)) {}

  // The outputs, and behind them what the states become.
  Floats run(const StateWalk& walk, const Floats& xbc, const Floats& beside) const {
    Floats found(std::size_t(walk.rows * kInner)), states = state;
    Floats kept(std::size_t(walk.rows * kHeads));
    trtspec::mamba2({.xbc = xbc.data(),
                     .dt = beside.data() + kInner,
                     .dt_row_stride = kBeside,
                     .gate = beside.data(),
                     .gate_row_stride = kBeside,
                     .kept = kept.data(),
                     .out = found.data(),
                     .dtype = trtspec::DType::f32,
                     .a_log = of_heads.data(),
                     .dt_bias = of_heads.data() + kHeads,
                     .skip = of_heads.data() + 2 * kHeads,
                     .dt_min = 0,
                     .dt_max = INFINITY,
                     .state = states.data(),
                     .heads = kHeads,
                     .head_dim = kHeadDim,
                     .groups = kGroups,
                     .state_size = kSize,
                     .walk = walk});
    found.insert(found.end(), states.begin(), states.end());
    return found;
  }
};

Floats picked(const Floats& rows, std::int64_t size, const std::vector<std::int64_t>& places) {
  Floats found;
  for (const std::int64_t at : places) {
    found.insert(found.end(), rows.begin() + at * size, rows.begin() + (at + 1) * size);
  }
  return found;
}

// A row of a tree is that of its path as a chain of certain rows, to the bit; the state takes in
// the root alone.
void trees_are_their_paths() {
  std::mt19937 rng(2);
  for (int round = 0; round < 5; ++round) {
    const Trees trees(rng, 1, 20);
    const World world(rng);
    const std::int64_t rows = trees.rows();
    const Floats xbc = noise(rng, rows * kMixed), beside = noise(rng, rows * kBeside);
    const Floats together = world.run(trees.walk(), xbc, beside);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<std::int64_t> path = trees.path_to(row);
      const auto count = std::int64_t(path.size());
      const std::vector<std::int64_t> blind(path.size(), 0);
      const std::int32_t starts[2] = {0, std::int32_t(count)};
      const bool is_tree = false;
      const Floats alone = world.run({count, 1, 2, 0, 1, trees.slots.data(), starts,
                                      trees.contexts.data(), &is_tree, blind.data()},
                                     picked(xbc, kMixed, path), picked(beside, kBeside, path));
      const float* last = alone.data() + (count - 1) * kInner;
      CHECK_EQ(std::memcmp(last, together.data() + row * kInner, kInner * sizeof(float)), 0);
      if (row > 0) continue;
      const std::size_t bytes = world.state.size() * sizeof(float);
      CHECK_EQ(std::memcmp(last + kInner, together.data() + rows * kInner, bytes), 0);
    }
  }
}

// From nothing, one row: what it takes in is read at once.
void a_first_row_is_by_hand() {
  std::mt19937 rng(3);
  const World world(rng);
  const Floats xbc = noise(rng, kMixed), beside = noise(rng, kBeside);
  const std::int32_t slot = 1, context = 0, starts[2] = {0, 1};
  const bool is_tree = false;
  const std::int64_t mask = 0;
  const Floats got =
      world.run({1, 1, 2, 0, 1, &slot, starts, &context, &is_tree, &mask}, xbc, beside);
  for (std::int64_t i = 0; i < kInner; ++i) {
    const std::int64_t head = i / kHeadDim, group = head / (kHeads / kGroups);
    const auto own = std::size_t(head);
    const double bias = world.of_heads[std::size_t(kHeads) + own];
    const double raw = beside[std::size_t(kInner) + own] + bias;
    double dot = 0;
    for (std::int64_t n = 0; n < kSize; ++n) {
      const auto b = std::size_t(kInner + group * kSize + n);
      dot += double(xbc[b]) * xbc[b + std::size_t(kGroups * kSize)];
    }
    const double z = beside[std::size_t(i)], x = xbc[std::size_t(i)];
    const double y =
        x * (std::log1p(std::exp(raw)) * dot + world.of_heads[std::size_t(2 * kHeads) + own]);
    CHECK_NEAR(got[std::size_t(i)], y * z / (1 + std::exp(-z)), 1e-4);
  }
}

}  // namespace

int main() {
  trees_are_their_paths();
  a_first_row_is_by_hand();
  return check_result();
}
