// causal_conv, gated_delta and mamba2 in the emulator against the CPU kernels: equal to rounding.
#include <kernels.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"
#include "state_trees.hpp"

namespace {

using trtspec::DType;
using trtspec::test::noise;
using Floats = std::vector<float>;

void check_near(const Floats& got, const Floats& want) {
  CHECK_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK_NEAR(got[i], want[i], 2e-5f * (1 + std::fabs(want[i])));
  }
}

// Rows of nobody are behind those of the requests, and a request may be padding.
trtspec::StateWalk some_walk(trtspec::test::StateTrees& trees, unsigned seed) {
  if (seed % 2 == 1) trees.slots[1] = -1;
  trtspec::StateWalk walk = trees.walk();
  walk.rows = walk.kept_rows = trees.rows() + 2;
  trees.masks.resize(std::size_t(walk.rows * walk.mask_words));
  walk.tree_mask = trees.masks.data();
  return walk;
}

void delta_equals_cpu(unsigned seed) {
  std::mt19937 rng(seed);
  trtspec::test::StateTrees trees(rng, 4, 12, true);
  const trtspec::StateWalk walk = some_walk(trees, seed);
  const std::int64_t rows = walk.rows, heads = 4, key_heads = 2;
  const std::int64_t key = 5 + seed % 40, value = 3 + seed % 90, width = 1 + seed % 4;
  const std::int64_t channels = 2 * key_heads * key + heads * value;
  const Floats x = noise(rng, rows * channels), gates = noise(rng, rows * 2 * heads);
  const Floats weight = noise(rng, width * channels), bias = noise(rng, channels);
  const Floats a_log = noise(rng, heads), dt_bias = noise(rng, heads);
  Floats tails[2], states[2], kept[2], kept_gates[2], mixed[2], out[2];
  tails[0] = tails[1] = noise(rng, trees.states * (width - 1) * channels);
  states[0] = states[1] = noise(rng, trees.states * heads * key * value);
  for (int i = 0; i < 2; ++i) {
    kept[i].resize(x.size());
    kept_gates[i].resize(gates.size());
    mixed[i].resize(x.size(), 7);
    out[i].resize(std::size_t(rows * heads * value), 7);
    const trtspec::CausalConvParams conv{.x = x.data(),
                                         .x_row_stride = channels,
                                         .weight = weight.data(),
                                         .bias = seed % 3 == 0 ? nullptr : bias.data(),
                                         .tail = tails[i].data(),
                                         .kept = kept[i].data(),
                                         .out = mixed[i].data(),
                                         .dtype = DType::f32,
                                         .channels = channels,
                                         .width = width,
                                         .walk = walk};
    const trtspec::GatedDeltaParams delta{.qkv = mixed[0].data(),
                                          .gates = gates.data(),
                                          .kept = kept_gates[i].data(),
                                          .out = out[i].data(),
                                          .dtype = DType::f32,
                                          .a_log = a_log.data(),
                                          .dt_bias = dt_bias.data(),
                                          .state = states[i].data(),
                                          .key_heads = key_heads,
                                          .value_heads = heads,
                                          .tiled = seed % 2 == 0,
                                          .key_dim = key,
                                          .value_dim = value,
                                          .walk = walk};
    if (i == 0) {
      trtspec::causal_conv(conv);
      trtspec::gated_delta(delta);
    } else {
      CHECK_EQ(trtspec::cuda::causal_conv(conv, nullptr), cudaSuccess);
      CHECK_EQ(trtspec::cuda::gated_delta(delta, nullptr), cudaSuccess);
    }
  }
  check_near(mixed[1], mixed[0]);
  check_near(out[1], out[0]);
  check_near(tails[1], tails[0]);
  check_near(states[1], states[0]);
  check_near(kept[1], kept[0]);
  check_near(kept_gates[1], kept_gates[0]);
}

void mamba2_equals_cpu(unsigned seed) {
  std::mt19937 rng(seed);
  trtspec::test::StateTrees trees(rng, 4, 12, true);
  const trtspec::StateWalk walk = some_walk(trees, seed);
  const std::int64_t rows = walk.rows, heads = 6, groups = 1 + seed % 3;
  const std::int64_t size = 1 + seed % 20, head_dim = 3 + 31 * (seed % 4), inner = heads * head_dim;

  const Floats xbc = noise(rng, rows * (inner + 2 * groups * size));
  const Floats both = noise(rng, rows * (inner + heads));  // dt, then the gate
  const Floats a_log = noise(rng, heads), dt_bias = noise(rng, heads), skip = noise(rng, heads);
  Floats states[2], kept[2], out[2];
  states[0] = states[1] = noise(rng, trees.states * inner * size);
  for (int i = 0; i < 2; ++i) {
    kept[i].resize(std::size_t(rows * heads));
    out[i].resize(std::size_t(rows * inner), 7);
    const trtspec::Mamba2Params mamba{.xbc = xbc.data(),
                                      .dt = both.data(),
                                      .dt_row_stride = inner + heads,
                                      .gate = both.data() + heads,
                                      .gate_row_stride = inner + heads,
                                      .kept = kept[i].data(),
                                      .out = out[i].data(),
                                      .dtype = DType::f32,
                                      .a_log = a_log.data(),
                                      .dt_bias = dt_bias.data(),
                                      .skip = skip.data(),
                                      .dt_min = seed % 2 ? 0.3f : 0,
                                      .dt_max = seed % 2 ? 1.2f : INFINITY,
                                      .state = states[i].data(),
                                      .heads = heads,
                                      .head_dim = head_dim,
                                      .groups = groups,
                                      .state_size = size,
                                      .walk = walk};
    if (i == 0) {
      trtspec::mamba2(mamba);
    } else {
      CHECK_EQ(trtspec::cuda::mamba2(mamba, nullptr), cudaSuccess);
    }
  }
  check_near(out[1], out[0]);
  check_near(states[1], states[0]);
  check_near(kept[1], kept[0]);
}

}  // namespace

int main() {
  for_seeds([](unsigned) {
    for (unsigned seed = 0; seed < 6; ++seed) delta_equals_cpu(seed);
    for (unsigned seed = 0; seed < 6; ++seed) mamba2_equals_cpu(seed);
  });
  return check_result();
}
