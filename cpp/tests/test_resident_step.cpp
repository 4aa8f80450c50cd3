#include <trtspec/resident_step.hpp>
#include <trtspec/text_end.hpp>

#include <array>
#include <vector>

#include "check.hpp"

namespace {

using Longs = std::vector<std::int64_t>;
using Ints = std::vector<std::int32_t>;
using trtspec::RequestState;
using trtspec::StepItem;

constexpr std::int64_t kBlock = 4, kRing = 3;

// Two places. The first generates behind 6 tokens, whose newest pair waits; the second one's text
// has ended.
struct Device {
  std::array<RequestState, 2> states{RequestState{.length = 6,
                                                  .num_prompt = 4,
                                                  .limit = 9,
                                                  .reach = 8,
                                                  .newest = 7,
                                                  .max_depth = 2,
                                                  .drafted = 4,
                                                  .absent = 1,
                                                  .end = 0,
                                                  .adapter = -1,
                                                  .top_k = 0,
                                                  .seed = 5,
                                                  .sample_index = 0},
                                     RequestState{.length = 9,
                                                  .num_prompt = 4,
                                                  .limit = 9,
                                                  .reach = 8,
                                                  .newest = 7,
                                                  .max_depth = 2,
                                                  .drafted = 4,
                                                  .absent = 0,
                                                  .end = 2,
                                                  .adapter = -1,
                                                  .top_k = 0,
                                                  .seed = 5,
                                                  .sample_index = 0}};
  std::vector<float> filters = std::vector<float>(6, 0.5f);
  Longs ends = {3, -1, -1, -1};
  Ints tables = {8, 9, 1, -1, 2, 3, 4, -1};
  Longs pairs = Longs(6, 7);
  std::array<StepItem, 3> items{StepItem{0, 0, 1, 1, 2, 1, 0}, StepItem{1, 0, 1, 1, 2, 1, 0},
                                StepItem{-1, 0, 0, 0, 0, 0, 0}};

  trtspec::ResidentRequests view() {
    return {2, states.data(), filters.data(), ends.data(), 2, tables.data(),
            4, pairs.data(),  kRing};
  }
};

// Outputs of `advance` for three items, of walks three rows wide.
struct Advanced {
  Longs result = Longs(3 * 16), src = Longs(9), dst = Longs(9), kept = Longs(9), ring = Longs(9);
};

Advanced advance(Device& device, const Longs& sampled, const Ints& accepted, const Ints& emitted) {
  // The root at row 0 of the call; nodes 5 and 6 are its children.
  const Ints query_start{0, 3, 3, 3}, row_start{0, 3, 3, 3}, parents{-1, 0, 0};
  const Longs tokens{0, 5, 6}, chunk;
  Advanced made;
  trtspec::advance({.requests = device.view(),
                    .items = device.items.data(),
                    .num_items = 3,
                    .chunk = chunk.data(),
                    .query_start = query_start.data(),
                    .row_start = row_start.data(),
                    .tokens = tokens.data(),
                    .parents = parents.data(),
                    .sampled = sampled.data(),
                    .accepted_rows = accepted.data(),
                    .num_emitted = emitted.data(),
                    .width = 3,
                    .block_size = kBlock,
                    .rule = {.behind = 0, .not_final = 0},
                    .result = made.result.data(),
                    .src_slots = made.src.data(),
                    .dst_slots = made.dst.data(),
                    .kept_rows = made.kept.data(),
                    .ring_rows = made.ring.data()});
  return made;
}

void a_request_moves_on() {
  Device device;
  // The second child is right: its row, at position 7, goes to position 6.
  const Advanced made = advance(device, {6, 0, 4}, {0, 2, -1, -1, -1, -1, -1, -1, -1}, {2, 0, 0});
  CHECK_EQ(made.result[0], 2);
  CHECK_EQ(made.result[1], 0);  // goes on
  CHECK_EQ(made.result[2], 5);  // its waiting pair was fed by the rollout of this step
  CHECK_EQ(made.result[3], 2);
  CHECK(Longs(made.result.begin() + 4, made.result.begin() + 9) == Longs({6, 4, 0, 0, 2}));
  CHECK(Longs(made.src.begin(), made.src.begin() + 3) == Longs({-1, 9 * kBlock + 3, -1}));
  CHECK(Longs(made.dst.begin(), made.dst.begin() + 3) == Longs({-1, 9 * kBlock + 2, -1}));
  CHECK(made.kept == Longs({0, 2, 0, 0, 0, 0, 0, 0, 0}));
  CHECK(made.ring == Longs({2, 0, 6, 6, 6, 6, 6, 6, 6}));  // positions 5 and 6; 6 is nobody's
  CHECK_EQ(device.states[0].length, 8);
  CHECK_EQ(device.states[0].newest, 4);
  CHECK_EQ(device.pairs[2], 6);
  CHECK_EQ(device.pairs[0], 4);
  CHECK_EQ(device.states[1].length, 9);  // it has ended, and emits nothing
}

void a_text_ends() {
  Device device;
  advance(device, {3, 0, 0}, {0, -1, -1, -1, -1, -1, -1, -1, -1}, {1, 0, 0});
  CHECK_EQ(device.states[0].end, std::int64_t(trtspec::FinishReason::stop));
  device = {};
  device.states[0].limit = 7;
  const Advanced made = advance(device, {6, 0, 4}, {0, 2, -1, -1, -1, -1, -1, -1, -1}, {2, 0, 0});
  CHECK_EQ(made.result[0], 1);
  CHECK_EQ(device.states[0].end, std::int64_t(trtspec::FinishReason::length));
  device = {};
  advance(device, {-1, 0, 0}, {0, -1, -1, -1, -1, -1, -1, -1, -1}, {1, 0, 0});
  CHECK_EQ(device.states[0].end, std::int64_t(trtspec::FinishReason::error));
  CHECK_EQ(device.states[0].length, 6);
}

void a_full_ring_ends_its_drafts() {
  Device device;
  device.items[0].max_nodes = 0;  // so that no rollout feeds what waits
  device.states[0].drafted = 3;
  const Advanced made = advance(device, {6, 0, 4}, {0, 2, -1, -1, -1, -1, -1, -1, -1}, {2, 0, 0});
  CHECK_EQ(device.states[0].max_depth, 0);
  CHECK_EQ(made.result[2], 3);
  CHECK(made.ring == Longs(9, 6));
}

}  // namespace

int main() {
  a_request_moves_on();
  a_text_ends();
  a_full_ring_ends_its_drafts();
  return check_result();
}
