// SlotGraph: a graph over padded rows that takes packed ones.
#pragma once

#include <memory>
#include <span>
#include <trtspec/runtime/device.hpp>
#include <trtspec/runtime/padding.hpp>
#include <trtspec/runtime/session.hpp>
#include <vector>

namespace trtspec {

// The caches are [slots, Hkv, length, D]. A sequence's first call clears its slot: whatever was
// left there, NaN included, is then gone.
class SlotGraph {
 public:
  // `device`: where its caches lie, and the logits that it returns.
  SlotGraph(std::unique_ptr<Session> session, SlotShape shape, std::shared_ptr<Device> device);

  // What a call reads beside its rows: for a network over states their features [T, H], for a
  // language model the rows whose logits are wanted [R] i64; else undefined.
  struct Extra {
    at::Tensor features;
    at::Tensor logits_rows;
  };
  // The graph's outputs for packed rows [T, ...]; with logits_rows the first output has those rows
  // [R, ...], on the device, and holds until the next call.
  std::vector<at::Tensor> run(const at::Tensor& input_ids, const RowPlaces& rows,
                              std::span<const at::Tensor> caches, const Extra& extra);

 private:
  std::unique_ptr<Session> session_;
  SlotShape shape_;
  std::shared_ptr<Device> device_;
};

}  // namespace trtspec
