// What a scheduler plans while launches are in flight.
#include "check.hpp"
#include "scheduler_world.hpp"

namespace {

using namespace scheduler_world;

void test_prompts_in_flight_advance_exactly() {
  World world(32, {}, {3, 3, {}}, 4, 4);
  Sequence& sequence = world.add(0, 10, 6);
  CHECK((rows_of(world.launch()) == std::vector<Ints>{{0, 0, 4, 0}}));
  CHECK((rows_of(world.launch()) == std::vector<Ints>{{0, 4, 4, 0}}));
  StepPlan plan = world.launch();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 8, 2, 0}}));
  CHECK(plan.items.front().samples);
  plan = world.launch();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 10, 1, 3}}));  // behind its first token
  CHECK(plan.items.front().is_generation);
  CHECK_EQ(world.resources.target_committed(sequence), 0);
  for (int i = 0; i < 4; ++i) world.collect();
  CHECK_EQ(world.resources.target_committed(sequence), 11);
  CHECK_EQ(sequence.size(), 12);
}

// Confirmed tokens, the most that those in flight may add, and the nodes of the next.
void test_room_for_the_most_that_may_be_emitted() {
  World world(32, {{cache(32)}}, {7, 3, {5}});
  Sequence& sequence = world.add(0, 8, 30);
  world.run();
  const auto rows = [&](const trtspec::KVCache& cache) {
    return std::int64_t(cache.block_table(0).size()) * kBlock;
  };
  for (std::int64_t in_flight = 0; in_flight < 3; ++in_flight) {
    world.launch();
    const std::int64_t most = 9 + 4 * in_flight;
    CHECK_EQ(rows(world.resources.target()), (most + 7 + 3) / kBlock * kBlock);
    CHECK_EQ(rows(world.resources.draft()), (most + 5 + 3) / kBlock * kBlock);
  }
  world.collect();  // others may write behind what is committed: the blocks stay
  CHECK_EQ(rows(world.resources.target()), 24);
  world.collect();
  world.collect();
  CHECK_EQ(sequence.size(), 12);
  CHECK_EQ(rows(world.resources.target()), 12);
}

void test_a_text_that_may_have_ended_is_launched_and_one_that_has_is_not() {
  World world(8, {}, {3, 3, {}});
  Sequence& sequence = world.add(0, 4, 3);
  world.launch();
  CHECK((rows_of(world.launch()) == std::vector<Ints>{{0, 4, 1, 1}}));  // may emit all that is left
  CHECK((rows_of(world.launch()) == std::vector<Ints>{{0, 5, 1, 0}}));  // or leave one
  CHECK(world.launch().items.empty());
  CHECK(world.scheduler.has_work());
  // However much is in flight, no more is reserved than the longest text needs.
  CHECK_EQ(world.resources.target_block_table(sequence).size(), 2u);
  world.collect();
  world.collect(1);
  CHECK(!world.scheduler.has_work());
  CHECK_EQ(world.collect().size(), 1u);
  CHECK_EQ(world.resources.target().num_free_blocks(), 8);
}

void test_blocks_rest_until_the_last_launch_that_may_write_them() {
  World world(8);
  Sequence& first = world.add(0, 6, 8);
  for (int i = 0; i < 3; ++i) world.launch();
  CHECK_EQ(world.resources.target().num_free_blocks(), 6);
  world.collect();
  world.finish(first);  // a stop string, say
  CHECK_EQ(world.scheduler.num_running(), 0);
  CHECK_EQ(world.resources.target().num_free_blocks(), 6);
  Sequence& second = world.add(1, 25, 2);  // it needs one of them
  CHECK(world.launch().items.empty());
  CHECK(world.collect().empty());
  CHECK(world.launch().items.empty());
  CHECK((world.collect() == std::vector<Sequence*>{&first}));
  CHECK_EQ(world.launch().items.front().sequence, &second);
  world.collect();
  CHECK_EQ(second.num_output_tokens(), 1);
}

void test_nobody_is_preempted_in_flight() {
  World world(6, {}, {}, 3);
  world.add(0, 8, 12);
  Sequence& second = world.add(1, 8, 12);
  std::size_t preempted = 0, waits = 0;
  while (world.scheduler.has_work()) {
    const std::size_t in_flight = world.launches.size();
    const StepPlan plan = world.launch();
    preempted += plan.preempted.size();
    CHECK(plan.preempted.empty() || in_flight == 0);
    waits += plan.items.empty();
    if (plan.items.empty() || world.launches.size() > 3) world.collect();
  }
  CHECK_EQ(preempted, 1u);
  CHECK(waits >= 3);
  CHECK_EQ(second.num_output_tokens(), 12);
  while (!world.launches.empty()) world.collect();
  CHECK_EQ(world.resources.target().num_free_blocks(), 6);
}

void test_a_state_rests_until_the_last_launch_that_may_write_it() {
  World world(16, {}, {}, 1, 64, {.num_states = 1});
  Sequence& first = world.add(0, 4);
  world.launch();
  world.launch();
  world.finish(first);
  world.add(1, 4);
  CHECK(world.launch().items.empty());
  world.collect();
  CHECK(world.launch().items.empty());
  world.collect();
  const StepPlan plan = world.launch();
  CHECK_EQ(plan.items.size(), 1u);
  CHECK_EQ(plan.states.front().slot, 0);
}

// While it rests with what it may copy there; the launches that may pass a border name one slot.
void test_a_snapshot_is_made_once() {
  World world(16, {}, {3, 3, {}}, 1, 64, {.num_states = 1, .num_snapshots = 2, .blocks_apart = 2});
  Sequence& sequence = world.add(0, 5, 9);
  world.launch();
  std::vector<std::int32_t> slots;
  for (int i = 0; i < 2; ++i) {
    const StepPlan plan = world.launch();
    CHECK_EQ(plan.states.front().snapshot.rows, 8);
    slots.push_back(plan.states.front().snapshot.slot);
  }
  CHECK((slots == std::vector<std::int32_t>{1, 1}));
  for (int i = 0; i < 3; ++i) world.collect(2);
  CHECK_EQ(sequence.size(), 12);
  CHECK_EQ(world.resources.target().match(sequence.tokens), 8);
}

void test_nothing_is_collected_twice() {
  World world(8);
  world.add(0, 4, 4);
  CHECK_THROWS(world.scheduler.collected());
  world.launch();
  world.collect();
  CHECK_THROWS(world.scheduler.collected());
}

}  // namespace

int main() {
  test_prompts_in_flight_advance_exactly();
  test_room_for_the_most_that_may_be_emitted();
  test_a_text_that_may_have_ended_is_launched_and_one_that_has_is_not();
  test_blocks_rest_until_the_last_launch_that_may_write_them();
  test_nobody_is_preempted_in_flight();
  test_a_state_rests_until_the_last_launch_that_may_write_it();
  test_a_snapshot_is_made_once();
  test_nothing_is_collected_twice();
  return check_result();
}
