#include <trtspec/error.hpp>
#include <trtspec/slot_kv_cache_manager.hpp>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "scheduler_world.hpp"

namespace {

using namespace scheduler_world;

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const trtspec::Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void test_a_prompt_then_drafts() {
  World world(32, {}, {3, 3, {}});
  world.add(0, 5, 6);
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 0, 5, 0}}));
  CHECK((rows_of(world.run(2)) == std::vector<Ints>{{0, 5, 1, 3}}));
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 8, 1, 1}}));  // two tokens are left
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 9, 1, 0}}));
  CHECK(!world.scheduler.has_work());
  CHECK(world.run().items.empty());
}

void test_useful_nodes() {
  const DraftLimits chain{3, 3, {}}, tree{7, 3, {}};
  CHECK_EQ(chain.useful_nodes(0), 0);
  CHECK_EQ(chain.useful_nodes(2), 2);
  CHECK_EQ(chain.useful_nodes(8), 3);
  CHECK_EQ(tree.useful_nodes(1), 7);
  CHECK_EQ(tree.useful_nodes(0), 0);
}

void test_a_request_may_limit_its_drafts() {
  World world(32, {{cache(4)}}, {4, 4, {4}});
  world.add(0, 2, 8, 0, 0);
  world.add(1, 2, 8, 0, 2);
  world.run();
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 2, 1, 0}, {1, 2, 1, 2}}));
  CHECK(world.resources.cache(1).block_table(0).empty());
  CHECK(!world.resources.cache(1).block_table(1).empty());
  // Nobody is asked whether to draft for one that is not drafted for.
  CHECK_EQ(world.scheduler.reserve_rows(), 2);
  while (world.scheduler.num_running() == 2) world.run(9);
  world.run();
  CHECK_EQ(world.scheduler.reserve_rows(), 0);
}

void test_a_draft_cache_is_no_limit_without_drafts() {
  World world(32, {{cache(3)}}, {4, 4, {4}});
  CHECK(contains(error_of([&] { world.add(0, 20, 20); }), "draft KV cache holds 12"));
  world.add(1, 20, 20, 0, 0);
  world.run();
  while (world.scheduler.has_work()) world.run();
  CHECK_EQ(world.sequences.back().num_output_tokens(), 20);
}

void test_rows_are_shared_out() {
  World world(32, {}, {}, 4, 8);
  for (const std::int64_t prompt : {5, 9, 2}) world.add(world.scheduler.num_waiting(), prompt);
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 0, 5, 0}, {1, 0, 3, 0}}));
  const StepPlan plan = world.run();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 5, 1, 0}, {1, 3, 6, 0}, {2, 0, 1, 0}}));
  CHECK_EQ(plan.num_begun, 1);
}

void test_the_latest_is_preempted_and_comes_back_first() {
  World world(6, {}, {}, 3);
  world.add(0, 8, 12);
  Sequence& second = world.add(1, 8, 12);
  world.run();
  world.add(2, 1, 2);
  StepPlan plan;
  for (int step = 0; step < 20 && plan.preempted.empty(); ++step) plan = world.run();
  CHECK((plan.preempted == std::vector<Sequence*>{&second}));
  CHECK_EQ(plan.items.size(), 1u);  // nobody is admitted in that step
  CHECK(world.scheduler.waiting().front() == &second);
  while (world.scheduler.has_work()) world.run();
  CHECK_EQ(second.num_output_tokens(), 12);
}

void test_a_full_draft_cache_costs_drafts() {
  World world(32, {{cache(6)}, {cache(32)}}, {3, 3, {2, 6}});
  world.add(0, 8, 14);
  world.add(1, 4, 14);
  world.run();
  std::size_t preempted = 0, dropped = 0;
  while (world.scheduler.num_running() == 2) {
    const StepPlan plan = world.run();
    preempted += plan.preempted.size();
    for (const ScheduledRows& item : plan.items) dropped += item.max_nodes == 0;
  }
  CHECK_EQ(preempted, 0u);
  CHECK(dropped > 0);
}

void test_a_step_may_rest() {
  World world(32, {{cache(32)}}, {3, 3, {8}});
  world.add(0, 5);
  world.run();
  CHECK_EQ(world.scheduler.reserve_rows(), 1);
  const std::int64_t free = world.resources.draft().num_free_blocks();
  CHECK((rows_of(world.run(0, false)) == std::vector<Ints>{{0, 5, 1, 0}}));
  CHECK_EQ(world.resources.draft().num_free_blocks(), free);
  CHECK((rows_of(world.run()) == std::vector<Ints>{{0, 6, 1, 3}}));
}

void test_the_queue_in_another_order() {
  World world(32, {}, {}, 1);
  for (std::int64_t id = 0; id < 3; ++id) world.add(id, 4, 2);
  std::vector<Sequence*> queue = world.scheduler.waiting();
  world.scheduler.reorder(std::array{queue[2], queue[0], queue[1]});
  Ints order;
  while (world.scheduler.has_work()) order.push_back(world.run().items.front().sequence->id);
  CHECK((order == Ints{2, 2, 0, 0, 1, 1}));
  world.add(7, 4);
  queue = world.scheduler.waiting();
  Sequence other;
  CHECK_THROWS(world.scheduler.reorder({}));
  CHECK_THROWS(world.scheduler.reorder(std::array{&other}));
  CHECK_THROWS(world.scheduler.reorder(std::array{queue[0], queue[0]}));
  world.scheduler.reorder(queue);
}

void test_no_draft_shortens_what_the_target_holds() {
  // A feature drafter's cache with other blocks, and one that catches up from tokens.
  ResourceManager resources(cache(16), {{cache(16, 3, 1)}, {cache(16), true}});
  Sequence first{0, Ints(30, 5), 30, 8}, second{1, Ints(30, 5), 30, 8};
  CHECK_EQ(resources.begin(first), 0);
  CHECK(resources.reserve(first, 30, Ints{28, 8}));
  resources.commit(first, 28, Ints{26, 8});
  CHECK_EQ(resources.begin(second), 28);
  CHECK_EQ(resources.draft_absent(second, 0), 4);  // of 26 rows it keeps 24
  CHECK_EQ(resources.draft_committed(second, 0), 28);
  CHECK_EQ(resources.draft_absent(second, 1), 0);
  CHECK_EQ(resources.draft_committed(second, 1), 8);
  CHECK(resources.reserve(second, 29, Ints{29, 29}));
  resources.commit(second, 29, Ints{29, 28});
  CHECK_EQ(resources.draft(0).committed(1), 25);
  resources.check_invariants();
  resources.free(second);
  // With a window it may have no room to catch up.
  for (const auto& [blocks, absent] : {std::pair{16, 0}, {6, 20}}) {
    ResourceManager windowed(cache(16), {{cache(blocks, kBlock, 0, 3), true}});
    CHECK_EQ(windowed.begin(first), 0);
    CHECK(windowed.reserve(first, 30, Ints{8}));
    windowed.commit(first, 28, Ints{8});
    CHECK_EQ(windowed.begin(second), 28);
    CHECK_EQ(windowed.draft_absent(second), absent);
    CHECK_EQ(windowed.draft_committed(second), absent == 0 ? 8 : 28);
  }
}

void test_all_caches_or_none() {
  ResourceManager resources(cache(2), {{cache(2)}, {cache(1)}});
  Sequence sequence{0, {1, 2, 3}, 3, 8};
  resources.begin(sequence);
  CHECK(!resources.reserve(sequence, 8, Ints{8, 8}));
  CHECK_EQ(resources.target().num_free_blocks(), 2);
  CHECK(resources.reserve(sequence, 8, Ints{4, 4}));
  CHECK_EQ(resources.room(sequence), 4);
  CHECK_EQ(resources.target_room(sequence), 8);
  CHECK_EQ(resources.usage(), 1.0);
  CHECK_THROWS(resources.commit(sequence, 2, Ints{3, 0}));
  CHECK_THROWS(resources.commit(sequence, 2, Ints{2}));
  CHECK_THROWS(resources.reserve(sequence, 2, Ints{2}));
  resources.commit(sequence, 3, Ints{2, 3});
  resources.check_invariants();
}

void test_what_cannot_fit_is_refused_with_both_numbers() {
  World world(5, {{cache(5)}, {cache(5)}}, {3, 3, {2, 6}});
  const auto refused = [&](std::int64_t prompt, std::int64_t output) {
    return error_of([&] { world.add(0, prompt, output); });
  };
  CHECK(contains(refused(10, 6),
                 "10 prompt tokens + 6 output tokens + 6 draft slots = 22 tokens, "
                 "but the draft 2 KV cache holds 20 (5 blocks of 4)"));
  CHECK(contains(refused(60, 5), "max_seq_len=64"));
  CHECK(!world.scheduler.has_work());
  CHECK_EQ(refused(8, 6), std::string());
  const auto limits = [&](std::int64_t batch, std::int64_t rows, DraftLimits drafts) {
    return error_of([&] { Scheduler(world.resources, {batch, rows, 64}, drafts); });
  };
  CHECK(contains(limits(0, 4, {0, 0, {1, 1}}), "max_batch_size=0"));
  CHECK(
      contains(limits(4, 3, {0, 0, {1, 1}}), "max_num_tokens=3 must be at least max_batch_size=4"));
  CHECK(contains(limits(4, 4, {0, 0, {1}}), "needs 1 draft KV caches, but there are 2"));
}

void test_slots() {
  ResourceManager resources(std::make_shared<trtspec::SlotKVCacheManager>(2, 20));
  Scheduler scheduler(resources, {4, 64, 64}, {});
  std::array<Sequence, 3> sequences;
  for (std::int64_t id = 0; Sequence& sequence : sequences) {
    sequence = {id++, Ints(6, 1), 6, 8};
    scheduler.add(sequence);
  }
  CHECK_EQ(scheduler.schedule().items.size(), 2u);  // a slot each, as nothing is pledged
  CHECK_EQ(resources.target().slot(1, 2), 22);
  CHECK_THROWS(resources.target().slot(1, 6));
}

// The slots of the items' states, sources and snapshots, and the rows of these.
std::vector<Ints> states_of(const StepPlan& plan) {
  std::vector<Ints> all;
  for (const auto& [slot, source, snapshot] : plan.states) {
    all.push_back({slot, source, snapshot.slot, snapshot.rows});
  }
  return all;
}

void test_chunks_end_where_snapshots_are_made() {
  World world(32, {}, {3, 3, {}}, 2, 64, {.num_states = 2, .num_snapshots = 3, .blocks_apart = 2});
  world.add(0, 18, 12);
  StepPlan plan = world.run();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 0, 8, 0}}));
  CHECK((states_of(plan) == std::vector<Ints>{{0, -1, 2, 8}}));
  plan = world.run();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 8, 8, 0}}));
  CHECK((states_of(plan) == std::vector<Ints>{{0, -1, 3, 16}}));
  plan = world.run();
  CHECK((rows_of(plan) == std::vector<Ints>{{0, 16, 2, 0}}));
  CHECK((states_of(plan) == std::vector<Ints>{{0, -1, -1, 0}}));
  Sequence& other = world.add(1, 12, 2, 1);  // the same text
  plan = world.run(3);                       // up to 22 rows
  CHECK((states_of(plan) == std::vector<Ints>{{0, -1, -1, 0}, {1, 2, -1, 0}}));
  CHECK_EQ(plan.items.back().start, 8);
  CHECK_EQ(world.resources.target().source(1), -1);  // it has begun
  world.finish(other);
  plan = world.run();  // from 22 rows to 25 at most
  CHECK((states_of(plan) == std::vector<Ints>{{0, -1, 4, 24}}));
}

}  // namespace

int main() {
  test_a_prompt_then_drafts();
  test_useful_nodes();
  test_a_request_may_limit_its_drafts();
  test_a_draft_cache_is_no_limit_without_drafts();
  test_rows_are_shared_out();
  test_the_latest_is_preempted_and_comes_back_first();
  test_a_full_draft_cache_costs_drafts();
  test_a_step_may_rest();
  test_the_queue_in_another_order();
  test_no_draft_shortens_what_the_target_holds();
  test_all_caches_or_none();
  test_what_cannot_fit_is_refused_with_both_numbers();
  test_slots();
  test_chunks_end_where_snapshots_are_made();
  return check_result();
}
