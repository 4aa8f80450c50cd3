// ModelEngine: one compiled model with its KV cache, as the executor and the drafters see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <trtspec/row_group.hpp>
#include <trtspec/runtime/commit.hpp>
#include <trtspec/runtime/device.hpp>
#include <trtspec/tree_growth.hpp>
#include <trtspec/tree_view.hpp>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace trtspec {

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
