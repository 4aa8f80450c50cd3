#include <trtspec/error.hpp>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/scheduler.hpp>
#include <trtspec/slot_kv_cache_manager.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::DraftLimits;
using trtspec::KVCacheManager;
using trtspec::ResourceManager;
using trtspec::ScheduledRows;
using trtspec::Scheduler;
using trtspec::Sequence;
using trtspec::StepPlan;
using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kBlock = 4;

std::shared_ptr<KVCacheManager> cache(std::int64_t num_blocks, std::int64_t block = kBlock,
                                      std::int64_t lookahead = 0, std::int64_t window = 0) {
  return std::make_shared<KVCacheManager>(num_blocks, block, true, lookahead, window);
}

// A scheduler with what it stands on, and the requests that it was given.
struct World {
  explicit World(std::int64_t blocks, std::vector<ResourceManager::Draft> drafts = {},
                 DraftLimits limits = {}, std::int64_t batch = 4, std::int64_t rows = 64)
      : resources(cache(blocks), std::move(drafts)),
        scheduler(resources, {batch, rows, 64}, std::move(limits)) {}

  // Its prompt shares nothing with those of other bases.
  Sequence& add(std::int64_t id, std::int64_t prompt, std::int64_t max_output = 8,
                std::int64_t base = 0) {
    Sequence sequence{id, Ints(std::size_t(prompt)), prompt, max_output};
    std::iota(sequence.tokens.begin(), sequence.tokens.end(), 1000 * (base ? base : id + 1));
    sequences.push_back(std::move(sequence));
    scheduler.add(sequences.back());
    return sequences.back();
  }

  // One step, up to `accept` drafts of each request accepted; what is complete is finished.
  StepPlan run(std::int64_t accept = 0, bool drafts = true) {
    StepPlan plan = scheduler.schedule(drafts);
    settle(plan, accept);
    return plan;
  }

  // Plans a step, which is then in flight.
  StepPlan launch() {
    const StepPlan plan = scheduler.schedule();
    if (!plan.items.empty()) {
      scheduler.launched(plan.items);
      launches.push_back(plan);
    }
    return plan;
  }

  // What became of the oldest launch; which sequences are free now.
  std::vector<Sequence*> collect(std::int64_t accept = 0) {
    std::vector<Sequence*> ended = scheduler.collected();
    StepPlan plan = std::move(launches.front());
    launches.pop_front();
    std::erase_if(plan.items, [&](const ScheduledRows& item) {
      return std::ranges::count(gone, item.sequence) > 0;
    });
    for (ScheduledRows& item : plan.items) {
      if (item.is_generation) item.start = item.sequence->size() - 1;
    }
    settle(plan, accept);
    return ended;
  }

  void finish(Sequence& sequence) {
    gone.push_back(&sequence);
    scheduler.finish(sequence);
  }

  void settle(const StepPlan& plan, std::int64_t accept) {
    for (const ScheduledRows& item : plan.items) {
      Sequence& sequence = *item.sequence;
      const std::int64_t most = std::min(item.max_nodes, sequence.remaining_tokens() - 1);
      const std::int64_t kept = item.samples ? std::min(accept, most) : 0;
      if (item.samples) sequence.tokens.insert(sequence.tokens.end(), std::size_t(kept) + 1, 7);
      Ints drafted;
      for (std::size_t i = 0; i < resources.num_drafts(); ++i) {
        const bool fed = !item.is_generation || item.max_nodes > 0;
        drafted.push_back(fed ? item.start + item.num_rows
                              : resources.draft_committed(sequence, i));
      }
      resources.commit(sequence, item.start + item.num_rows + kept, drafted);
      if (sequence.remaining_tokens() == 0) finish(sequence);
    }
    resources.check_invariants();
  }

  ResourceManager resources;
  Scheduler scheduler;
  std::deque<Sequence> sequences;
  std::deque<StepPlan> launches;
  std::vector<Sequence*> gone;
};

// Id, start, rows and nodes of every item.
std::vector<Ints> rows_of(const StepPlan& plan) {
  std::vector<Ints> rows;
  for (const ScheduledRows& item : plan.items) {
    rows.push_back({item.sequence->id, item.start, item.num_rows, item.max_nodes});
  }
  return rows;
}

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
  CHECK_EQ(chain.useful_nodes(1), 0);
  CHECK_EQ(chain.useful_nodes(3), 2);
  CHECK_EQ(chain.useful_nodes(9), 3);
  CHECK_EQ(tree.useful_nodes(2), 7);
  CHECK_EQ(tree.useful_nodes(1), 0);
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
  CHECK(contains(refused(10, 6), "10 prompt tokens + 6 output tokens + 6 draft slots = 22 tokens, "
                                 "but the draft 2 KV cache holds 20 (5 blocks of 4)"));
  CHECK(contains(refused(60, 5), "max_seq_len=64"));
  CHECK(!world.scheduler.has_work());
  CHECK_EQ(refused(8, 6), std::string());
  const auto limits = [&](std::int64_t batch, std::int64_t rows, DraftLimits drafts) {
    return error_of([&] { Scheduler(world.resources, {batch, rows, 64}, drafts); });
  };
  CHECK(contains(limits(0, 4, {0, 0, {1, 1}}), "max_batch_size=0"));
  CHECK(contains(limits(4, 3, {0, 0, {1, 1}}), "max_num_tokens=3 must be at least max_batch_size=4"));
  CHECK(contains(limits(4, 4, {0, 0, {1}}), "needs 1 draft KV caches, but there are 2"));
}

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

void test_nothing_is_collected_twice() {
  World world(8);
  world.add(0, 4, 4);
  CHECK_THROWS(world.scheduler.collected());
  world.launch();
  world.collect();
  CHECK_THROWS(world.scheduler.collected());
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

}  // namespace

int main() {
  test_a_prompt_then_drafts();
  test_useful_nodes();
  test_rows_are_shared_out();
  test_the_latest_is_preempted_and_comes_back_first();
  test_a_full_draft_cache_costs_drafts();
  test_a_step_may_rest();
  test_the_queue_in_another_order();
  test_no_draft_shortens_what_the_target_holds();
  test_all_caches_or_none();
  test_what_cannot_fit_is_refused_with_both_numbers();
  test_prompts_in_flight_advance_exactly();
  test_room_for_the_most_that_may_be_emitted();
  test_a_text_that_may_have_ended_is_launched_and_one_that_has_is_not();
  test_blocks_rest_until_the_last_launch_that_may_write_them();
  test_nobody_is_preempted_in_flight();
  test_nothing_is_collected_twice();
  test_slots();
  return check_result();
}
