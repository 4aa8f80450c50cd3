// SessionEngine: a ModelEngine over the sessions of an engine folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <trtspec/runtime/device.hpp>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/pass_rollout.hpp>
#include <trtspec/runtime/session.hpp>
#include <vector>

namespace trtspec {

// What the calls of an engine had to read at the least: every weight once a pass, and the K/V of
// every request's rows.
struct EngineTraffic {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
};

// How often a call of a session passes over its weights, and their bytes over all passes.
struct Passes {
  std::int64_t count = 1;
  std::int64_t weight_bytes = 0;
};

// Packs rows, owns the K/V caches, counts and times its calls. Not thread-safe.
//
// A cache's buffer is [blocks, block_size, heads, size] or, in a slot layout, whose blocks are slots,
// [slots, heads, length, size]; of states [states, heads, size], of a call's rows [rows, heads, size].
class SessionEngine final : public ModelEngine {
 public:
  struct Part {
    std::unique_ptr<Session> session;
    Passes passes;
  };

  // What an engine runs. model: of a target, or of a draft that is fed by it; any other draft is fed
  // by `step`, a rollout of one step, or by a `rollout` that makes no more itself. With `loop`,
  // `rollout` is one pass, which feeds rows too. replay: of a target that keeps states.
  struct Parts {
    Part model;
    Part rollout;
    Part step;
    std::unique_ptr<PassRollout> loop = nullptr;
    std::unique_ptr<Session> replay = nullptr;
  };

  // Blocks, or slots, of a cache; states, the last one being that of padding; and rows of a call.
  struct Sizes {
    std::int64_t num_blocks;
    std::int64_t num_states = 0;
    std::int64_t num_rows = 0;
  };

  // With zeroed caches on `device`.
  SessionEngine(const EngineFolder& folder, const DecoderShape& shape, const Sizes& sizes,
                std::shared_ptr<Device> device, Parts parts);

  const CacheLayout& layout() const override { return layout_; }
  std::int64_t vocab_size() const override { return shape_.vocab_size; }
  Output forward(std::span<const RowGroup> groups) override;
  void feed(std::span<const RowGroup> groups, const at::Tensor& hidden) override;
  Rollout rollout(std::span<const RowGroup> groups, const SamplingColumns& sampling,
                  const at::Tensor& hidden, const StopRule& rule) override;
  void compact(std::span<const std::int64_t> src_slots,
               std::span<const std::int64_t> dst_slots) override;
  void move_states(const StateMoves& moves) override;
  void copy_states(const Moves& moves) override;
  Device& device() override { return *device_; }
  std::int64_t num_calls() const override { return num_calls_; }
  double seconds() const override { return seconds_; }

  const EngineTraffic& traffic() const { return traffic_; }

 private:
  std::vector<at::Tensor> roll_out(Part& part, std::span<const RowGroup> groups,
                                   const SamplingColumns& sampling, const at::Tensor& hidden);
  std::vector<at::Tensor> roll_out_by_pass(std::span<const RowGroup> groups,
                                           const SamplingColumns& sampling, const StopRule& rule);
  void replay(const TakenNodes& taken);
  // Appends where the requests' states are, if there are such.
  void add_states(std::span<const RowGroup> groups, std::vector<at::Tensor>& inputs) const;
  std::vector<at::Tensor> run(Part& part, std::vector<at::Tensor> inputs,
                              std::span<const RowGroup> groups);
  // What calls took that began then, each with so many passes of a part.
  void count(std::chrono::steady_clock::time_point began, std::int64_t calls, const Part& part,
             std::span<const RowGroup> groups);
  // Of each row, the rows of its heads in a slot cache, in the order of the rows.
  std::vector<std::int64_t> rows_of_heads(std::span<const std::int64_t> slots,
                                          std::int64_t heads) const;

  CacheLayout layout_;
  DecoderShape shape_;
  std::shared_ptr<Device> device_;
  Parts parts_;
  std::vector<at::Tensor> caches_;  // the buffers, layer by layer
  // The same by heads, the size of these and dtype: buffers that are compacted together.
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, std::vector<at::Tensor>> alike_;
  std::vector<at::Tensor> states_;  // those of them that hold states
  std::int64_t num_calls_ = 0;
  double seconds_ = 0.0;
  EngineTraffic traffic_;
};

}  // namespace trtspec
