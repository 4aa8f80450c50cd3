// ModelEngine: one compiled model with its KV cache, as the executor and the drafters see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <trtspec/runtime/commit.hpp>
#include <trtspec/runtime/device.hpp>
#include <trtspec/tree_growth.hpp>
#include <trtspec/tree_view.hpp>

#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <vector>

namespace trtspec {

// The fixed sizes of an engine's inputs. is_slots: a sequence has one slot of tokens_per_block
// positions in place of blocks.
struct CacheLayout {
  std::int64_t tokens_per_block;
  std::int64_t blocks_per_sequence;
  std::int64_t mask_words;
  bool is_slots = false;
};

// The rows of one request: tokens behind its committed ones, then the nodes of its tree. A tree
// needs its root to be the only token. last_logits: the logits of the last token and of every node
// are wanted; without it none (the middle of a prefill). gap: tokens that the request has beside the
// `context` rows which its cache holds: positions are so many further. state: the slot of the
// request's state, of an engine that keeps such; of a draft's call, source: the snapshot that it is
// copied from before, and snapshot: where it is copied to behind the call; -1: neither. adapter: where
// its adapter lies among those of the engine; -1: it has none. What it points to outlives the call.
struct RowGroup {
  std::span<const std::int64_t> tokens;
  std::int64_t context = 0;
  std::span<const std::int32_t> blocks;
  TreeView tree = {};
  bool last_logits = true;
  std::int64_t gap = 0;
  std::int32_t state = -1;
  std::int32_t source = -1;
  std::int32_t snapshot = -1;
  std::int32_t adapter = -1;

  std::int64_t num_rows() const { return std::ssize(tokens) + tree.size(); }
};

// The sampling values of some rows, in the order and with the dtypes of the sampling ops:
// temperature, top_k, top_p, min_p, seed, sample_index, output_index.
using SamplingColumns = std::vector<at::Tensor>;

class ModelEngine {
 public:
  // logits [R, V] f32 of the wanted rows, on the device; hidden [T, n * H], undefined unless the
  // engine captures.
  struct Output {
    at::Tensor logits;
    at::Tensor hidden;
  };
  // Each [B, N - 1], where it stopped before fewer: tokens i64, parents i32, scores f32.
  struct Rollout {
    at::Tensor tokens;
    at::Tensor parents;
    at::Tensor scores;
  };

  virtual ~ModelEngine() = default;

  virtual const CacheLayout& layout() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  // Feeds rows and writes their K/V.
  virtual Output forward(std::span<const RowGroup> groups) = 0;
  // Writes the K/V of a draft's rows; `hidden` [T, n * H] are the target's states, of a network
  // that reads them, else undefined.
  virtual void feed(std::span<const RowGroup> groups, const at::Tensor& hidden) = 0;
  // Feeds accepted rows and drafts behind each request's last one. `hidden` is undefined for a
  // network that reads no states. An engine that makes each pass by a call stops by the `rule`;
  // any other heeds a max_depth of 1, if it can, and nothing else of it.
  virtual Rollout rollout(std::span<const RowGroup> groups, const SamplingColumns& sampling,
                          const at::Tensor& hidden, const StopRule& rule) = 0;
  // Moves K/V rows of every layer between flat slots.
  virtual void compact(std::span<const std::int64_t> src_slots,
                       std::span<const std::int64_t> dst_slots) = 0;

  // What becomes of the states behind the last call, see StateMoves; and copies states between slots,
  // none of which is in both. Of engines that keep states.
  virtual void move_states(const StateMoves&) {
    throw std::logic_error("this engine keeps no states");
  }
  virtual void copy_states(const Moves&) { throw std::logic_error("this engine keeps no states"); }

  // Where the logits lie, to be sampled from before the next call.
  virtual Device& device() = 0;

  // Calls so far, and the seconds spent in them.
  virtual std::int64_t num_calls() const = 0;
  virtual double seconds() const = 0;
};

}  // namespace trtspec
