// A scheduler over caches that only keep books, whose steps emit what tests say.
#pragma once
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/scheduler.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace scheduler_world {

using trtspec::DraftLimits;
using trtspec::KVCacheManager;
using trtspec::ResourceManager;
using trtspec::ScheduledRows;
using trtspec::Scheduler;
using trtspec::Sequence;
using trtspec::StepPlan;
using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kBlock = 4;
constexpr std::int64_t kUnlimited = Sequence{}.max_draft_len;

inline std::shared_ptr<KVCacheManager> cache(std::int64_t num_blocks, std::int64_t block = kBlock,
                                             std::int64_t lookahead = 0, std::int64_t window = 0,
                                             const trtspec::StateSizes& states = {}) {
  return std::make_shared<KVCacheManager>(num_blocks, block, true, lookahead, window, 0, states);
}

// A scheduler with what it stands on, and the requests that it was given.
struct World {
  explicit World(std::int64_t blocks, std::vector<ResourceManager::Draft> drafts = {},
                 DraftLimits limits = {}, std::int64_t batch = 4, std::int64_t rows = 64,
                 const trtspec::StateSizes& states = {})
      : resources(cache(blocks, kBlock, 0, 0, states), std::move(drafts)),
        scheduler(resources, {batch, rows, 64}, std::move(limits)) {}

  // Its prompt shares nothing with those of other bases.
  Sequence& add(std::int64_t id, std::int64_t prompt, std::int64_t max_output = 8,
                std::int64_t base = 0, std::int64_t draft_len = kUnlimited) {
    Sequence sequence{id, Ints(std::size_t(prompt)), prompt, max_output, draft_len};
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
      const std::int64_t most = std::min(item.max_nodes, sequence.draft_depth());
      const std::int64_t kept = item.samples ? std::min(accept, most) : 0;
      if (item.samples) sequence.tokens.insert(sequence.tokens.end(), std::size_t(kept) + 1, 7);
      Ints drafted;
      for (std::size_t i = 0; i < resources.num_drafts(); ++i) {
        const bool fed = sequence.may_draft() && (!item.is_generation || item.max_nodes > 0);
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
inline std::vector<Ints> rows_of(const StepPlan& plan) {
  std::vector<Ints> rows;
  for (const ScheduledRows& item : plan.items) {
    rows.push_back({item.sequence->id, item.start, item.num_rows, item.max_nodes});
  }
  return rows;
}

}  // namespace scheduler_world
