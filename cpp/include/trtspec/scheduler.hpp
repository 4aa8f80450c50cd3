// Scheduler: which rows of which requests the next step feeds, within rows and blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <trtspec/resource_manager.hpp>
#include <trtspec/sequence.hpp>
#include <utility>
#include <vector>

namespace trtspec {

struct SchedulerLimits {
  std::int64_t max_batch_size;
  std::int64_t max_num_tokens;  // rows of a step over all requests, draft nodes included
  std::int64_t max_seq_len;     // prompt and output of one request
};

// What drafts may take of a step, per request; all are maxima, all 0 for no speculation.
struct DraftLimits {
  std::int64_t max_nodes = 0;  // nodes in a tree, the root not counted
  std::int64_t max_depth = 0;  // depth of the deepest node
  // Rows that a rollout writes behind the request's own tokens, of each draft cache.
  std::vector<std::int64_t> slots;

  // Upper bound of the nodes of use to a request whose nodes are cut at that depth. Exact for a
  // chain; a wider tree may be shallow, so it keeps its bound as long as depth 1 is allowed.
  std::int64_t useful_nodes(std::int64_t depth) const;
};

// Rows of one request in a step: tokens[start : start + num_rows], then its draft nodes.
struct ScheduledRows {
  Sequence* sequence;
  std::int64_t start;     // the target's committed length
  std::int64_t num_rows;  // 1 (the root) if is_generation
  bool is_generation;
  // Draft nodes for which rows and blocks are reserved; 0 in prefill. Where it is 0, no room of a
  // draft cache is reserved beyond what the request held, so no rollout may run for it.
  std::int64_t max_nodes;
  // Whether the rows reach the newest token, so that the step emits a token; always so if
  // is_generation.
  bool samples;
};

// The state of an item whose target keeps such: its slot; that of the snapshot to copy there before
// the call, -1: none; and what is to be copied from there when the state has taken in so many rows.
struct ScheduledState {
  std::int32_t slot;
  std::int32_t source;
  Snapshot snapshot;
};

// The requests of a step, in the order in which they began, the last num_begun of them with this
// step; and those that lost their blocks for it: these are back in the queue.
struct StepPlan {
  std::vector<ScheduledRows> items;
  std::vector<ScheduledState> states;  // of the items; empty: the target keeps none
  std::int64_t num_begun = 0;
  std::vector<Sequence*> preempted;
};

// Continuous batching with chunked prefill and preemption; first come first served, unless the
// queue is put into another order.
//
// A step is decided in three passes.
//
// 1. Every running request reserves ONE row: the root, or the next row of its prompt. If that
//    fails, the latest to begin among the running ones is preempted (its blocks freed, its output
//    kept, itself put at the front of the queue, to be recomputed), until it succeeds or the
//    request is itself the latest: then it keeps its blocks and waits for a later step.
// 2. What is left of the row budget and of the blocks goes, in the same order, to draft nodes and
//    to longer prefill chunks. This pass shrinks what does not fit and never preempts: a request
//    without drafts loses a few tokens of this step, while a victim loses its whole context and
//    must compute it again. (Hence the mandatory rows of all come before the drafts of the first.)
// 3. Waiting requests are admitted if their whole prompt fits beside what pass 1 will ask for in
//    the next steps; nobody is admitted in a step in which somebody lacked blocks.
//
// Where the target keeps states, a chunk ends at the next border at which a snapshot may be made.
//
// Progress: the first of the running requests is nobody's victim, and pass 1 cannot fail for it: at
// worst all others are preempted, and then every block is its own, free or evictable, and it fits
// alone by check_fits. If nothing runs, the first in the queue is admitted for the same reason. So
// every step feeds some request at least one row, which goes on until that one finishes. First come
// first served, this is the earliest unfinished request: the running ones are always the earliest,
// since admission is in order of arrival and victims are the latest. In another order a request
// waits for as long as others are put before it.
//
// A step may be planned while others are in flight (`launched`, `collected`), for engines that keep
// what runs on the device. Then a request that generates may be anywhere between its least and its
// most tokens: rows are reserved for the most, nodes are allowed for the least. It is left out once
// it has surely reached its longest text. One that may have reached it is launched: if it has, the
// device feeds no rows of it, while holding it back would let every request wait for its launches
// one by one at the end of its text. Nobody is preempted while anything is in flight: the plan is
// empty then, as it is where nothing else can be launched, and the oldest launch is to be collected
// first. Progress is the same, since with nothing in flight all is as above.
class Scheduler {
 public:
  // Throws Error for limits that contradict each other or the caches.
  Scheduler(ResourceManager& resources, const SchedulerLimits& limits, DraftLimits drafts);

  std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t num_waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  bool has_work() const { return num_running() + num_waiting() > 0; }

  // Throws Error if the request could not run even alone: longer than max_seq_len, or with its
  // drafts larger than one of the caches.
  void check_fits(const Sequence& sequence) const;
  // Queues a request, which is the caller's, behind all others; throws as check_fits does. Touches
  // nothing but the queue.
  void add(Sequence& sequence);
  // Forgets a request, running or waiting, and frees its blocks; whether it ran. If launches of it
  // are in flight, its blocks rest until the last of them is collected, as it may write there.
  bool finish(Sequence& sequence);
  // The requests that hold no blocks, in the order in which they are admitted.
  std::vector<Sequence*> waiting() const { return {waiting_.begin(), waiting_.end()}; }
  // Has them admitted in another order. Throws std::invalid_argument unless they are the same.
  void reorder(std::span<Sequence* const> waiting);

  // Pass 1 of a step. Returns how many of the requests that have their row generate; 0 if none of
  // these may draft.
  std::int64_t reserve_rows();
  // Reserves and returns the rows of the next step; empty only if there is no request, or launches
  // are to be collected first. All committed lengths must be those after the last step that is not in
  // flight. Pass 1 is taken if it was not yet. drafts: false: running requests get no draft nodes.
  StepPlan schedule(bool drafts = true);
  // Items of the last plan were launched, and others may be planned before this step is committed.
  void launched(std::span<const ScheduledRows> items);
  // The oldest launch has ended: called before what became of it is committed. Returns the sequences
  // that had finished, and whose blocks are free now; they are not used here any more.
  std::vector<Sequence*> collected();

 private:
  struct Ready {
    Sequence* sequence;
    std::int64_t start;  // the least
  };
  // A sequence of a launch, and what this alone adds to what is in flight of it.
  struct Launched {
    Sequence* sequence;
    InFlight part;
  };

  // Pass 2: draft nodes (if `drafts`), or a longer chunk, for a request that has one row; `spare`
  // more rows are left.
  ScheduledRows extend(const Ready& ready, std::int64_t spare, bool drafts);
  // Pass 3: starts waiting requests, appending to the plan.
  void admit(StepPlan& plan, std::int64_t spare);
  // The states of the items, which are complete.
  void add_states(StepPlan& plan);
  void preempt_latest();
  // The same length in the target's cache and in those of the drafts, where these are in use.
  bool reserve_everywhere(const Sequence& sequence, std::int64_t num_tokens);
  std::int64_t room(const Sequence& sequence) const;
  // Tokens that a sequence has at most when the next launch begins, and goes on.
  std::int64_t most_tokens(const Sequence& sequence) const;

  ResourceManager& resources_;
  SchedulerLimits limits_;
  DraftLimits drafts_;
  std::vector<Sequence*> running_;  // in the order in which they began
  std::deque<Sequence*> waiting_;
  std::vector<Ready> ready_;   // what pass 1 gave rows
  bool is_short_ = false;      // somebody lacked blocks in it
  bool must_collect_ = false;  // and nobody may be preempted now
  bool has_reserved_ = false;
  std::vector<Sequence*> preempted_;
  std::deque<std::vector<Launched>> launches_;  // the oldest first
  std::vector<Sequence*> resting_;              // finished, with blocks
  std::vector<std::int64_t> lengths_;           // of each draft, for one call
};

}  // namespace trtspec
