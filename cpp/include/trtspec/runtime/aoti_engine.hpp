// AotiEngine: a ModelEngine over the compiled packages of an engine folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/weights.hpp>
#include <vector>

namespace trtspec {

// What the calls of an engine had to read at the least: every weight once a pass, and the K/V of
// every request's rows.
struct EngineTraffic {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
};

// Runs packages that AOTInductor compiled, over weights that it does not copy and K/V caches that
// it owns. Not thread-safe.
class AotiEngine final : public ModelEngine {
 public:
  // The target or the draft of a folder, with caches of num_blocks blocks. What a draft borrows of
  // its target is bound to `target_weights` itself. Throws Error for a package that is missing or
  // cannot be loaded, or that needs weights which the folder lacks.
  static std::unique_ptr<AotiEngine> open_target(const EngineFolder& folder,
                                                 const Weights& target_weights,
                                                 std::int64_t num_blocks);
  static std::unique_ptr<AotiEngine> open_draft(const EngineFolder& folder,
                                                const Weights& target_weights,
                                                std::int64_t num_blocks);
  ~AotiEngine() override;

  const CacheLayout& layout() const override { return layout_; }
  std::int64_t vocab_size() const override { return shape_.vocab_size; }
  Output forward(std::span<const RowGroup> groups) override;
  void feed(std::span<const RowGroup> groups, const at::Tensor& hidden) override;
  Rollout rollout(std::span<const RowGroup> groups, const SamplingColumns& sampling,
                  const at::Tensor& hidden) override;
  void compact(std::span<const std::int64_t> src_slots,
               std::span<const std::int64_t> dst_slots) override;
  std::int64_t num_calls() const override { return num_calls_; }
  double seconds() const override { return seconds_; }

  const EngineTraffic& traffic() const { return traffic_; }

 private:
  class Package;
  struct Passes {
    std::int64_t count;         // over the weights, in one call
    std::int64_t weight_bytes;  // of all of them
  };

  AotiEngine(const EngineFolder& folder, const DecoderShape& shape, std::int64_t num_blocks);
  std::vector<at::Tensor> run(Package& package, std::vector<at::Tensor> inputs,
                              std::span<const RowGroup> groups, const Passes& passes);

  CacheLayout layout_;
  DecoderShape shape_;
  std::int64_t kv_bytes_per_token_;
  Passes model_passes_{1, 0};
  Passes rollout_passes_{1, 0};
  std::unique_ptr<Package> model_;
  std::unique_ptr<Package> rollout_;
  std::vector<at::Tensor> caches_;  // K of every layer, then V
  std::int64_t num_calls_ = 0;
  double seconds_ = 0.0;
  EngineTraffic traffic_;
};

}  // namespace trtspec
