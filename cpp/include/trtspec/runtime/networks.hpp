// Networks made of lowered graphs: they take packed rows over slot caches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <trtspec/runtime/slot_graph.hpp>
#include <trtspec/runtime/session.hpp>
#include <vector>

namespace trtspec {

// The flat inputs of an engine, taken apart: packed rows, what an engine of its kind reads beside
// them, and the caches.
struct EngineInputs {
  at::Tensor input_ids;
  RowPlaces rows;
  std::span<const at::Tensor> extra;
  std::span<const at::Tensor> caches;

  // Valid as long as the list is.
  static EngineInputs of(std::span<const at::Tensor> inputs, std::size_t num_caches);
};

// A target over its graph.
class TargetNetwork final : public Session {
 public:
  TargetNetwork(SlotGraph graph, std::size_t num_caches);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  SlotGraph graph_;
  std::size_t num_caches_;
};

// A draft network with K/V: one graph for a pass, one for its head and, where it reads the target's
// states, one that makes features of them.
class DraftNetwork {
 public:
  struct Parts {
    SlotGraph pass;
    std::unique_ptr<Session> head;
    std::unique_ptr<Session> fuse;  // null for a language model
    at::Tensor token_map;    // the target's id of each column of the logits; undefined: the column
    at::Tensor mask_hidden;  // what masks read in place of the target's states, or undefined
    std::shared_ptr<Device> device;  // where its logits lie
  };
  // What a pass comes to: the features [T, H] that a child of each row is fed, of a network that
  // reads any, and the rows [T, H] that its head reads.
  struct Passed {
    at::Tensor features;
    at::Tensor ready;
  };

  DraftNetwork(Parts parts, std::size_t num_caches);

  bool reads_states() const { return parts_.fuse != nullptr; }
  std::size_t num_caches() const { return num_caches_; }
  const at::Tensor& token_map() const { return parts_.token_map; }
  const at::Tensor& mask_hidden() const { return parts_.mask_hidden; }
  // The target's states [T, n * H_t] -> the features [T, H] of a first pass.
  at::Tensor fuse(const at::Tensor& states);
  Passed draft(const at::Tensor& input_ids, const at::Tensor& features, const RowPlaces& rows,
               std::span<const at::Tensor> caches);
  Device& device() const { return *parts_.device; }
  // Rows [R, H] -> logits [R, V] f32 on the device, which hold until the next call.
  at::Tensor head(const at::Tensor& ready);

 private:
  Parts parts_;
  std::size_t num_caches_;
};

// A draft network for each depth, each with layers of its own in the caches: the first ones are
// those of depth 0, and so on. See ModuleStack in trtspec/models/mtp_modules.py.
class ModuleStack {
 public:
  // The networks make no features of the target's states; num_caches: of all of them.
  ModuleStack(std::vector<DraftNetwork> depths, std::size_t num_caches);

  std::size_t size() const { return depths_.size(); }
  std::size_t num_caches() const { return num_caches_; }
  DraftNetwork& at(std::size_t depth) { return depths_[depth]; }
  // A pass of the network of a depth, from 0; `caches` are those of all.
  DraftNetwork::Passed draft(std::size_t depth, const at::Tensor& input_ids,
                             const at::Tensor& features, const RowPlaces& rows,
                             std::span<const at::Tensor> caches);

 private:
  std::vector<DraftNetwork> depths_;
  std::size_t num_caches_;
};

// The tokens that a deeper network of a stack reads: those of the depth above, moved up by one.
at::Tensor moved_up(const at::Tensor& input_ids);

// Feeds rows to all networks of a stack, with the target's states.
class ModulesFeed final : public Session {
 public:
  explicit ModulesFeed(std::shared_ptr<ModuleStack> stack);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  std::shared_ptr<ModuleStack> stack_;
};

}  // namespace trtspec
