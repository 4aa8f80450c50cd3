// RolloutDrafter: drafts from an engine that rolls out a whole tree for the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <trtspec/resource_manager.hpp>
#include <trtspec/runtime/drafter.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <vector>

namespace trtspec {

// What a drafter needs to know of the tree that its engine rolls out. It may ask for fewer steps or
// nodes than the engine has: trees are cut.
struct RolloutShape {
  std::int64_t num_steps;         // D, draft steps
  std::int64_t num_nodes;         // N - 1, the root not counted
  std::int64_t num_rollout_rows;  // written into the draft cache behind the accepted ones
  // Tokens after its position on which a row of the draft cache depends; 0: it reads no states of
  // the target.
  std::int64_t lookahead = 0;

  // A chain (topk 1) or a dynamic tree (k, D, N).
  static RolloutShape dynamic(std::int64_t topk, std::int64_t num_steps,
                              std::int64_t num_draft_tokens, std::int64_t lookahead = 0) {
    return {num_steps, num_draft_tokens - 1, topk * (num_steps - 1), lookahead};
  }
  // A static tree: the path of each node, a rank among its siblings for every depth.
  static RolloutShape fixed(std::span<const std::vector<std::int64_t>> choices,
                            std::int64_t lookahead = 0);

  DrafterNeeds needs() const;
};

// What drafters with an engine share: one rollout for all, and trees cut to each request.
//
// The first pass of a rollout feeds every row that the draft cache lacks, so the rollout's own rows
// are simply discarded: re-reading an accepted token costs one more row in a pass that reads all
// weights anyway.
class RolloutDrafter : public Drafter {
 public:
  const DrafterNeeds& needs() const override { return needs_; }
  DraftBatch prepare_draft_tokens(const StepPlan& plan) override;
  const ModelEngine* engine() const override { return &engine_; }

 protected:
  struct FirstPass {
    std::vector<RowGroup> groups;
    at::Tensor hidden;  // the target's states of the rows, if they are read
  };

  // p_min: see StopRule.
  RolloutDrafter(ModelEngine& engine, ResourceManager& resources, const DrafterNeeds& needs,
                 double p_min = 0.0)
      : engine_(engine), resources_(resources), needs_(needs), p_min_(p_min) {}

  // Whether the first pass has something to feed for a generating request.
  virtual bool can_draft(const Request& request) const = 0;
  // The rows that the draft cache lacks.
  virtual FirstPass first_pass(std::span<const Request* const> requests) = 0;
  // The rows of the draft cache that are made of the request's positions from `start` on, at least
  // its committed length, each read with one of `tokens`. They lie directly behind the rows that the
  // cache has: tokens before them may be absent. They end where `ends` says.
  RowGroup rows(const Request& request, std::int64_t start,
                std::span<const std::int64_t> tokens) const;
  // Where rows of the request's positions from `start` to `end` are cut into calls: behind those at
  // which a snapshot is made of a state, and at the end.
  std::vector<std::int64_t> ends(const Request& request, std::int64_t start,
                                 std::int64_t end) const;
  // Of `count` rows that could be made from `start` on, how many to feed so that the last block which
  // they fill is offered for reuse; 0 where they fill none, nobody is to find it or the request has no
  // blocks for them. Behind a kept row `beyond` others must be fed.
  std::int64_t rows_to_offer(const Request& request, std::int64_t start, std::int64_t count,
                             std::int64_t beyond) const;

  ModelEngine& engine_;
  ResourceManager& resources_;

 private:
  DrafterNeeds needs_;
  double p_min_;
};

// Rolls out a draft model behind the accepted tokens of every generating request. Prompts are fed
// as the target consumes them.
class TokenDrafter final : public RolloutDrafter {
 public:
  // `resources` needs a draft cache.
  TokenDrafter(ModelEngine& engine, ResourceManager& resources, const RolloutShape& shape,
               double p_min = 0.0)
      : RolloutDrafter(engine, resources, shape.needs(), p_min) {}

  std::vector<std::int64_t> on_accepted(const StepPlan& plan, const StepResult& result) override;
  void release(std::int64_t request_id) override { fed_.erase(request_id); }

 protected:
  bool can_draft(const Request&) const override { return true; }
  FirstPass first_pass(std::span<const Request* const> requests) override;

 private:
  // The calls' rows of each request; a call has one part of each.
  using Parts = std::vector<std::vector<RowGroup>>;

  // Rows of the request's positions from `begin` to `end`, behind those of `parts`.
  void add(const Request& request, std::int64_t begin, std::int64_t end,
           std::vector<RowGroup>& parts);
  // Feeds all parts but the last of each, which it returns.
  std::vector<RowGroup> feed_but_last(const Parts& parts);
  // What the draft reads for tokens[begin : end]: ids that only the target's padded embedding has
  // become 0, which costs acceptance and nothing else.
  std::span<const std::int64_t> known(const Request& request, std::int64_t begin, std::int64_t end);

  std::map<std::int64_t, std::int64_t> fed_;
  std::vector<std::vector<std::int64_t>> replaced_;  // what `known` returned since the last call
};

// Rolls out a network that reads the target's states behind the newest of them.
//
// Row p of the draft cache is made of the target's state at position p and of the needs().lookahead
// tokens behind it: of token p + 1, and of one more for each further module of several.
// So it can be fed as soon as the target has accepted position p, and is *final* once all those
// tokens are known. Only final rows are kept, which hold nothing but the target's own states and
// tokens. States whose rows are not final, or have not been fed, are *pending*; the newest one
// always is: the first pass of the next rollout needs a row, the one whose output predicts behind
// the root. A prefill chunk's other rows are fed with the chunk.
//
// A request whose whole prompt but the root came out of the prefix cache has no pending state: it
// drafts nothing in its first step, which, as a prefill does, emits one token. Tokens of which the
// target has K/V and the draft cache no rows stay without: their states are gone.
class HiddenStateDrafter final : public RolloutDrafter {
 public:
  // `resources` needs a draft cache of the shape's lookahead, which is 1 or more.
  HiddenStateDrafter(ModelEngine& engine, ResourceManager& resources, const RolloutShape& shape)
      : RolloutDrafter(engine, resources, shape.needs()) {}

  std::vector<std::int64_t> on_accepted(const StepPlan& plan, const StepResult& result) override;
  void release(std::int64_t request_id) override;

 protected:
  bool can_draft(const Request& request) const override { return pending_.contains(request.id); }
  FirstPass first_pass(std::span<const Request* const> requests) override;

 private:
  // Of `fed` rows from the first one that is not kept yet, those that are final.
  std::int64_t num_final(std::int64_t fed) const {
    return std::max<std::int64_t>(fed + 1 - needs().lookahead, 0);
  }
  // Rows start .. start + count - 1 of the draft cache, each with the token after it.
  RowGroup group(const Request& request, std::int64_t start, std::int64_t count) const;

  std::map<std::int64_t, at::Tensor> pending_;  // [rows behind the draft's committed, n * H]
  std::map<std::int64_t, std::int64_t> fed_;
};

}  // namespace trtspec
