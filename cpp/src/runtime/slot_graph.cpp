#include "trtspec/runtime/slot_graph.hpp"

#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <utility>

#include "tensors.hpp"

namespace trtspec {

namespace {

// Of the wanted packed rows, those of a call: their indices in the list, and their places among the
// call's rows, at least one, as a graph wants.
struct Wanted {
  std::vector<std::int64_t> indices;
  at::Tensor places;
};

Wanted wanted_of(const PaddedCall& call, const at::Tensor& logits_rows, std::int64_t num_rows) {
  std::vector<std::int64_t> place(static_cast<std::size_t>(num_rows), -1);
  const auto* packed = call.packed.const_data_ptr<std::int64_t>();
  const auto* own = call.places.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < call.packed.size(0); ++i) {
    place[static_cast<std::size_t>(packed[i])] = own[i];
  }
  std::vector<std::int64_t> indices, places;
  const auto* rows = logits_rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < logits_rows.size(0); ++i) {
    const std::int64_t found = place[static_cast<std::size_t>(rows[i])];
    if (found < 0) continue;
    indices.push_back(i);
    places.push_back(found);
  }
  if (places.empty()) places.push_back(0);
  return {std::move(indices), to_tensor(places)};
}

at::Tensor zeros_like_rows(const at::Tensor& output, std::int64_t rows) {
  std::vector<std::int64_t> sizes = output.sizes().vec();
  sizes[0] = rows;
  return at::zeros(sizes, output.options());
}

}  // namespace

SlotGraph::SlotGraph(std::unique_ptr<Session> session, SlotShape shape,
                     std::shared_ptr<Device> device)
    : session_(std::move(session)), shape_(std::move(shape)), device_(std::move(device)) {}

std::vector<at::Tensor> SlotGraph::run(const at::Tensor& input_ids, const RowPlaces& rows,
                                       std::span<const at::Tensor> caches, const Extra& extra) {
  const std::int64_t num_rows = input_ids.size(0);
  std::vector<at::Tensor> results;
  const std::vector<PaddedCall> calls = padded_calls(rows, shape_);
  for (const PaddedCall& call : calls) {
    for (const std::int64_t slot : call.begins) {
      for (const at::Tensor& cache : caches) device_->clear(cache.select(0, slot));
    }
    std::vector<at::Tensor> inputs = {call.pad(input_ids), call.positions, call.write_indices};
    inputs.insert(inputs.end(), call.masks.begin(), call.masks.end());
    if (extra.features.defined()) inputs.push_back(call.pad(extra.features));
    Wanted wanted;
    if (extra.logits_rows.defined()) {
      wanted = wanted_of(call, extra.logits_rows, num_rows);
      inputs.push_back(wanted.places);
    }
    for (const at::Tensor& cache : caches) {
      inputs.push_back(cache.narrow(0, call.first_slot, call.num_slots));
    }
    const std::vector<at::Tensor> outputs = session_->run(std::move(inputs));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (i == 0 && wanted.places.defined()) {
        const std::int64_t count = extra.logits_rows.size(0);
        if (calls.size() == 1) {  // the rows are those wanted, in their order
          results.push_back(outputs[i].narrow(0, 0, count));
          continue;
        }
        if (results.empty()) {
          results.push_back(device_->zeros({count, outputs[i].size(1)}, outputs[i].scalar_type()));
        }
        device_->place_rows(results[i], wanted.indices, outputs[i]);
        continue;
      }
      if (results.size() <= i) results.push_back(zeros_like_rows(outputs[i], num_rows));
      results[i].index_copy_(0, call.packed, outputs[i].index_select(0, call.places));
    }
  }
  if (results.empty()) throw std::logic_error("a call without rows");
  return results;
}

}  // namespace trtspec
