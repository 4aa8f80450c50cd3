// The step of requests that live on an engine's device: what its calls are fed, and what becomes of
// them, without the host.
//
// A request lies at a *place*, one of a fixed number of rows of each of the arrays below. In a step
// the host names places and what may be fed of each (StepItem); everything else the device knows.
// Sizes follow from those of the call alone: rows, requests and logits that are not used are
// padding, as of executor/engines/buckets.py.
//
// A draft that reads the target's states is fed *pairs*: the state at a position and the token
// behind it. The pair of position p is row p + behind of the draft's text. Those that its cache
// does not have, or not for good, wait in a ring: that of position p at p % ring. A draft that
// reads tokens alone is fed the tokens of pairs, with behind = 1.
#pragma once

#include <cstdint>
#include <trtspec/row_arrays.hpp>

namespace trtspec {

// Of one place, as a row of int64.
struct RequestState {
  std::int64_t length;      // tokens of the text, the newest included
  std::int64_t num_prompt;  // of these the prompt's
  std::int64_t limit;       // length at which the text ends
  std::int64_t reach;       // no node is drafted for a later position than that of token `reach`
  std::int64_t newest;      // the last token
  std::int64_t max_depth;   // of its drafts; 0: it is not drafted for
  std::int64_t drafted;     // rows of its text that are in the draft's cache for good, or absent
  std::int64_t absent;      // of these, those that have no row there
  std::int64_t end;         // FinishReason of a text that has ended; 0
  std::int64_t adapter;     // see RowGroup
  std::int64_t top_k;       // sampling values, see trtspec/sampling.hpp
  std::int64_t seed;
  std::int64_t sample_index;

  constexpr bool goes_on() const { return end == 0; }
  // Depth of the deepest node that is of use now.
  constexpr std::int64_t depth() const {
    const std::int64_t room = reach - length;
    return room < max_depth ? room : max_depth;
  }
  // Pairs that wait when the text generates.
  constexpr std::int64_t num_pairs(std::int64_t behind) const {
    return length - 1 + behind - drafted;
  }
};

// Of one item of a step's plan, as a row of int64.
struct StepItem {
  std::int64_t place;      // -1: padding
  std::int64_t start;      // of a prompt's rows, the first one's position
  std::int64_t num_rows;   // of a prompt; 1 of a request that generates
  std::int64_t generates;  // 0 or 1
  std::int64_t max_nodes;
  std::int64_t samples;  // 0 or 1
  // Of a prompt, where its tokens lie: those of all rows, and unless it samples, one more.
  std::int64_t first_token;

  // Whether a rollout drafts for it.
  constexpr bool rolls_out(const RequestState& state, std::int64_t behind) const {
    return generates != 0 && max_nodes > 0 && state.goes_on() && state.depth() > 0 &&
           state.num_pairs(behind) > 0;
  }
};

// What a device keeps of its requests.
struct ResidentRequests {
  std::int64_t num_places;
  RequestState* states;      // [places]
  const float* filters;      // [places, 3]: temperature, top_p, min_p
  const std::int64_t* ends;  // [places, num_ends]: tokens that end the text; -1 behind them
  std::int64_t num_ends;
  const std::int32_t* tables;  // [places, table_width]: blocks; -1 behind them
  std::int64_t table_width;    // blocks_per_sequence of the layout
  std::int64_t* pairs;         // [places, ring]: tokens of the pairs that wait
  std::int64_t ring;           // 0: no draft reads states
};

// Pairs of a draft. not_final: how many of the last rows that a call is fed have to be fed again,
// because they read tokens that are not known yet.
struct PairRule {
  std::int64_t behind;
  std::int64_t not_final;
};

// Sampling values as inputs of an engine; see trtspec/sampling.hpp.
struct SamplingArrays {
  float* temperature;
  std::int32_t* top_k;
  float* top_p;
  float* min_p;
  std::int64_t* seed;
  std::int64_t* sample_index;
  std::int64_t* output_index;
};

// The call of a target. Drafts are nodes [B, num_nodes] of a rollout for these items, best first or
// not; each request is given what it can use of them (DraftCut), if its item rolls out.
struct PackVerifyParams {
  ResidentRequests requests;
  const StepItem* items;  // [B]
  std::int64_t num_items;
  const std::int64_t* chunk;          // tokens of prompts
  const std::int64_t* draft_tokens;   // [B, num_nodes]
  const std::int32_t* draft_parents;  // [B, num_nodes]
  const float* draft_scores;          // [B, num_nodes]
  std::int64_t num_nodes;
  std::int64_t behind;  // see PairRule
  CacheLayout layout;

  RowArrays rows;           // with num_items requests
  std::int64_t num_rows;    // T
  std::int64_t num_logits;  // R
  SamplingArrays columns;   // [R]
  std::int64_t* tokens;     // [R]; 0 for roots
  std::int32_t* parents;    // [R]; -1 for roots, 0 for padding
  std::int32_t* row_start;  // [B + 1]
};

// The call of a rollout: the pairs that wait, of each item that rolls out; the others have no rows
// and no blocks. requests.tables are of the draft's cache.
struct PackRolloutParams {
  ResidentRequests requests;
  const StepItem* items;  // [B]
  std::int64_t num_items;
  std::int64_t behind;
  CacheLayout layout;

  RowArrays rows;           // logits_rows: null; with num_items requests
  std::int64_t num_rows;    // T
  std::int64_t* last_rows;  // [B]: the last row of each; 0 without
  SamplingArrays columns;   // [B]; 0 without
  std::int64_t* ring_rows;  // [T]: where the state of each row lies among all rings; 0 for padding
};

// What becomes of a verified step. Changes requests.states and requests.pairs.
struct AdvanceParams {
  ResidentRequests requests;
  const StepItem* items;  // [B]
  std::int64_t num_items;
  const std::int64_t* chunk;
  const std::int32_t* query_start;    // [B + 1], of the target's call
  const std::int32_t* row_start;      // [B + 1]
  const std::int64_t* tokens;         // [R]
  const std::int32_t* parents;        // [R]
  const std::int64_t* sampled;        // [R]
  const std::int32_t* accepted_rows;  // [B, width], as `accept` gives them
  const std::int32_t* num_emitted;    // [B]
  std::int64_t width;
  std::int64_t block_size;
  PairRule rule;

  // [B, 4 + 4 * width]: how many tokens it emits, FinishReason, rows of the draft (`drafted`),
  // nodes that were verified; then, width each, the tokens, the rows that emit them, and of the
  // nodes the tokens and parents (-1 = child of the root). 0 behind the ends; all 0 of padding.
  std::int64_t* result;
  // [B, width]: rows of the target's cache to be moved, by slots; -1 where nothing moves.
  std::int64_t* src_slots;
  std::int64_t* dst_slots;
  // [B, ring]: rows of the call whose states are to be kept, and where among all rings; 0 and
  // places * ring, where nobody reads, behind them.
  std::int64_t* kept_rows;
  std::int64_t* ring_rows;
};

// Each returns -1, or the first item that does not fit: its rows its blocks, or the rows of all the
// call. Outputs are unspecified then.
std::int64_t pack_verify(const PackVerifyParams& params);
std::int64_t pack_rollout(const PackRolloutParams& params);
// Sizes fit by then: nothing can be wrong.
void advance(const AdvanceParams& params);

}  // namespace trtspec
