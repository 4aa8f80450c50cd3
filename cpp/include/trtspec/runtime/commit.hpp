// What the result of a step does to the texts and the caches of its requests, in both step loops.
#pragma once

#include <cstdint>
#include <span>
#include <trtspec/draft_batch.hpp>
#include <trtspec/resource_manager.hpp>
#include <trtspec/runtime/step_result.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

// Rows of a cache, by slots: where they lie, and where they are to go.
struct Moves {
  std::vector<std::int64_t> from;
  std::vector<std::int64_t> to;
};

// Accepted nodes that states are to take in: of each of some states the rows of the last call, in
// order, rows[start[j]] .. rows[start[j + 1] - 1].
struct TakenNodes {
  std::vector<std::int32_t> slots;
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> start = {0};

  bool empty() const { return slots.empty(); }
};

// What becomes of the target's states behind its call, which has taken in all but the nodes: they take
// in nodes up to where a snapshot is made, snapshots are copied, they take in the other nodes.
struct StateMoves {
  TakenNodes before;
  Moves snapshots;
  TakenNodes behind;
};

// These take the items of a step's plan, and its result, a value an item. They throw
// std::logic_error for numbers that contradict each other.

// Appends to every text what the step emits.
void extend(std::span<const ScheduledRows> items, const StepResult& result);
// What lets the accepted rows of every request lie behind each other in the target's cache; to be
// done before they are committed, as others may find them then.
Moves compaction(std::span<const ScheduledRows> items, const StepResult& result,
                 const KVCache& target);
// The same of its states, to be done in that order before the rows are committed. nodes: in the draft of
// each item, whether accepted or not.
StateMoves state_moves(std::span<const ScheduledRows> items, std::span<const ScheduledState> states,
                       const StepResult& result, std::span<const std::int64_t> nodes);
// Where the rows that stay lie among all that the step fed, `drafts` among them: of each item, those
// of its text, then accepted nodes.
std::vector<std::int64_t> kept_rows(std::span<const ScheduledRows> items, const StepResult& result,
                                    const DraftBatch& drafts);
// Moves the counters of all caches to the rows that stay, and offers blocks that are full for reuse.
// drafted: rows in the drafts' caches, one item behind the other.
void commit(std::span<const ScheduledRows> items, const StepResult& result,
            std::span<const std::int64_t> drafted, ResourceManager& resources);

}  // namespace trtspec
