// EngineFolder: the contract of a folder that trtspec-build wrote, from its config.json.
//
//   config.json        format version, models, build, speculation, fingerprints, environment, and
//                      type and shape of all weights
//   target/            weights.safetensors; model.pt2 (backend aoti), with replay.pt2 of a target
//                      that keeps states, for accepted drafts
//   draft/             weights.safetensors; pass.pt2, one pass of a rollout, or rollout.pt2, and what
//                      feeds it: step.pt2, a rollout of one step (none beside another of one), or
//                      model.pt2 (backend aoti)
//   *.onnx, *.engine   graphs of backends onnx and tensorrt, whose initialisers lie in the weight
//                      files, and TensorRT's engines of them
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/runtime/backend.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/rollout_drafter.hpp>
#include <trtspec/safetensors.hpp>
#include <trtspec/tree_levels.hpp>
#include <vector>

namespace trtspec {

constexpr std::int64_t kEngineFormatVersion = 10;

// What one layer keeps, and the sliding window of its attention.
struct LayerCache {
  // What it keeps rows of: every token, every request's state, every row of the last call.
  enum class Kind { paged, slot, step };
  // Of such a row `size` elements of each of `heads`.
  struct Buffer {
    std::int64_t heads;
    std::int64_t size;
    std::string dtype;
    Kind kind = Kind::paged;

    std::int64_t row_bytes() const;
  };

  std::vector<Buffer> buffers;
  std::int64_t window;  // newest tokens that it sees; 0: all
};

// The shape of a decoder, as far as running it asks for it. What follows from the shape of its
// layers was worked out when the folder was written.
struct DecoderShape {
  std::string architecture;
  std::int64_t vocab_size;
  std::int64_t hidden_size;
  std::vector<std::int64_t> eos_token_ids;
  std::int64_t num_layers;
  std::vector<LayerCache> caches;   // of the layers that have one of their own, in their order
  std::int64_t kv_bytes_per_token;  // of all caches
  std::int64_t pass_bytes;          // of the weights that one pass of the whole network reads

  std::size_t num_buffers() const;  // of all caches
  // Of one row of all buffers of a kind; 0 of a state: it keeps none.
  std::int64_t row_bytes(LayerCache::Kind kind) const;
  bool keeps_states() const { return row_bytes(LayerCache::Kind::slot) > 0; }
  // The sliding windows of its layers in tokens, rising, 0 for none: a slot cache has a mask of
  // each.
  std::vector<std::int64_t> windows() const;
  // The shortest sliding window; 0: every layer sees everything.
  std::int64_t min_window() const;
  // The longest one; 0: some layer sees everything.
  std::int64_t widest_window() const;
};

struct DraftShape {
  DecoderShape decoder;
  bool reads_states = false;      // the target's; else tokens alone
  std::int64_t lookahead = 0;     // tokens after its position on which a row of its cache depends
  std::int64_t rollout_rows = 0;  // written into its cache behind the accepted ones
  // Modules that each draft at a depth of their own, a chain; 0: one drafts at every depth.
  // `decoder` has the layers of all.
  std::int64_t num_modules = 0;
  // The id of the rows by which it guesses all depths in one pass; of a draft that does.
  std::optional<std::int64_t> mask_token;
  bool by_pass = false;  // its rollout is a loop of calls of one pass each

  bool in_one_pass() const { return num_modules > 0 || mask_token.has_value(); }
};

struct BuildLimits {
  Backend backend;
  std::string dtype;  // float32, bfloat16 or float16
  std::int64_t max_batch_size;
  std::int64_t max_seq_len;
  std::int64_t max_num_tokens;
  std::int64_t tokens_per_block;

  // Whether a sequence has one slot of the cache in place of blocks.
  bool has_slots() const { return backend != Backend::aoti; }
};

// What the draft inside the folder was built for: (k, D, N), all maxima.
struct SpeculationContract {
  std::string method;  // as Python names it
  std::int64_t topk;
  std::int64_t num_steps;
  std::int64_t num_draft_tokens;                   // rows verified, the root included
  std::vector<std::vector<std::int64_t>> choices;  // the paths of a static tree; else empty
  double p_min = 0.0;                              // see StopRule

  TreeShape tree() const { return {topk, num_steps, num_draft_tokens, choices}; }
  // Most rows of a request that a pass behind the first feeds; 0: there is none.
  std::int64_t widest_pass() const {
    const Levels levels(tree());
    return levels.widths().empty() ? 0 : std::ranges::max(levels.widths());
  }
};

// What compiled code depends on. A package of backend aoti runs only where the first four match and
// the processor has the instructions, an engine of TensorRT where the other two do; a graph of
// backend onnx runs anywhere.
struct Environment {
  std::string torch;
  std::string machine;
  std::string vector_isa;
  std::int64_t ops;
  std::optional<std::string> compute_capability;  // of the GPU: "8.9"
  std::optional<std::string> tensorrt;            // see TensorRT::version
  std::optional<std::string> instructions;        // see missing_instructions

  static Environment here();
};

struct EngineFolder {
  std::string path;
  DecoderShape target;
  std::optional<DraftShape> draft;  // the only one: engines of several run in Python
  BuildLimits build;
  std::optional<SpeculationContract> speculation;  // exactly with a draft
  Environment environment;
  WeightRecord target_record;  // what its weight files hold
  WeightRecord draft_record;   // empty without a draft

  // Reads and checks a folder's contract, before any weight is read. Throws Error for no or an
  // unreadable config, another format version, values that cannot be, an engine that runs in Python
  // only, or an environment that compiled code does not fit; file and value are named.
  static EngineFolder read(const std::string& path);

  // Refuses engines for another GPU than that of this compute capability, or of another TensorRT
  // than this version: throws Error, naming what was built for and what is here.
  void check_tensorrt(const std::string& compute_capability, const std::string& version) const;

  // Block tables reach past max_seq_len by the rows a step writes before it accepts them; a slot
  // cache by those and by as many rows of padding.
  CacheLayout layout() const;
  // Of the draft's rollout, cut to `steps` of the contract's num_steps, at least 1 of them; a
  // static tree is not cut. The engine still rolls out all that it was built for, so the rows that
  // it writes stay as many.
  RolloutShape rollout_shape(std::int64_t steps) const;
  // Most rows behind a request's committed tokens: those verified, or those of a rollout.
  std::int64_t speculative_rows() const;
  std::string target_model() const { return path + "/target/model.pt2"; }
  std::string target_replay() const { return path + "/target/replay.pt2"; }
  std::string target_weights() const { return path + "/target/weights.safetensors"; }
  std::string draft_model() const { return path + "/draft/model.pt2"; }
  std::string draft_pass() const { return path + "/draft/pass.pt2"; }
  std::string draft_step() const { return path + "/draft/step.pt2"; }
  std::string draft_rollout() const { return path + "/draft/rollout.pt2"; }
  // A graph, or TensorRT's engine of it.
  std::string target_graph() const { return path + "/target" + graph_suffix(); }
  std::string draft_graph(const std::string& name) const {
    return path + "/draft-" + name + graph_suffix();
  }
  const char* graph_suffix() const {
    return build.backend == Backend::tensorrt ? ".engine" : ".onnx";
  }
  std::string draft_weights() const { return path + "/draft/weights.safetensors"; }
  // Passes of the draft that one rollout makes, at most: one for each of its depths, unless a pass reaches
  // them all, by rows of a mask token or by a module for each. 0 without a draft.
  std::int64_t rollout_passes() const;
  // Bytes of the weights that it reads.
  std::int64_t rollout_weight_bytes() const;
};

}  // namespace trtspec
