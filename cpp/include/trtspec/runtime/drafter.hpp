// Drafter: what the executor asks of whatever guesses tokens, and what it tells it back.
#pragma once

#include <cstdint>
#include <trtspec/draft_batch.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/runtime/step_result.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

// What a drafter may use in a step, per request; all are maxima, all 0 for no speculation.
struct DrafterNeeds {
  std::int64_t max_nodes = 0;    // nodes in its tree, the root not counted
  std::int64_t max_depth = 0;    // depth of its deepest node
  std::int64_t draft_slots = 0;  // rows a rollout writes into the draft cache beyond the tokens
  bool has_draft_cache = false;  // it keeps K/V of its own
  std::int64_t lookahead = 0;    // tokens after a row of that cache on which the row depends
  bool reads_hidden = false;     // it is told the target's states

  // Throws Error for numbers that contradict each other.
  void check() const;
  // What the scheduler reserves for them.
  DraftLimits limits() const;
};

// A source of draft tokens. The executor asks needs(), never which method it is.
class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual const DrafterNeeds& needs() const = 0;
  // The draft nodes of plan.items, in their order: of each at most its max_nodes, none deeper than
  // draft_depth().
  virtual DraftBatch prepare_draft_tokens(const StepPlan& plan) = 0;
  // What became of plan.items, in their order; prefill chunks come here too. Called after the
  // request's tokens were extended and before finished requests are released. Returns for each item
  // how many rows of its draft cache are valid now: no fewer than before, at most start +
  // num_kept (the target's committed length to be); nothing without a draft cache.
  virtual std::vector<std::int64_t> on_accepted(const StepPlan& plan, const StepResult& result) = 0;
  // Forgets a finished, aborted or preempted request; unknown ids are ignored.
  virtual void release(std::int64_t request_id) = 0;
  // Forgets what it keeps of requests that have ended. Called while there is none.
  virtual void forget_ended() {}
  // The engine it drafts with, null without one; for its clock.
  virtual const ModelEngine* engine() const { return nullptr; }
};

// No speculation: every step emits the target's own token.
class NoDrafter final : public Drafter {
 public:
  const DrafterNeeds& needs() const override { return needs_; }
  DraftBatch prepare_draft_tokens(const StepPlan& plan) override {
    return DraftBatch(plan.items.size());
  }
  std::vector<std::int64_t> on_accepted(const StepPlan&, const StepResult&) override { return {}; }
  void release(std::int64_t) override {}

 private:
  DrafterNeeds needs_;
};

}  // namespace trtspec
