#include "trtspec/runtime/session_engine.hpp"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <stdexcept>
#include <trtspec/error.hpp>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/packing.hpp>
#include <trtspec/runtime/sampler.hpp>
#include <utility>

namespace trtspec {

namespace {

at::ScalarType torch_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  if (name == "int8") return at::kChar;
  throw Error("a cache of " + name + " is not known; rebuild the engine with trtspec-build");
}

// Of states, where a draft's groups name both slots.
Moves copies(std::span<const RowGroup> groups, std::int32_t RowGroup::* from,
             std::int32_t RowGroup::* to) {
  Moves moves;
  for (const RowGroup& group : groups) {
    if (group.*from < 0 || group.*to < 0) continue;
    moves.from.push_back(group.*from);
    moves.to.push_back(group.*to);
  }
  return moves;
}

}  // namespace

std::int64_t LayerCache::Buffer::row_bytes() const {
  return heads * size * static_cast<std::int64_t>(c10::elementSize(torch_dtype(dtype)));
}

SessionEngine::SessionEngine(const EngineFolder& folder, const DecoderShape& shape,
                             const Sizes& given, std::shared_ptr<Device> device, Parts parts)
    : layout_(folder.layout()),
      shape_(shape),
      device_(std::move(device)),
      parts_(std::move(parts)) {
  for (const LayerCache& layer : shape_.caches) {
    for (const auto& [heads, size, dtype, kind] : layer.buffers) {
      using enum LayerCache::Kind;
      const std::int64_t rows = kind == slot ? given.num_states : given.num_rows;
      std::vector<std::int64_t> sizes = {rows, heads, size};
      if (kind == paged) {
        sizes = {given.num_blocks, layout_.tokens_per_block, heads, size};
        if (layout_.is_slots) std::swap(sizes[1], sizes[2]);
      }
      caches_.push_back(device_->zeros(sizes, torch_dtype(dtype)));
      if (kind == paged) alike_[{heads, size, dtype}].push_back(caches_.back());
      if (kind == slot) states_.push_back(caches_.back());
    }
  }
}

SessionEngine::Output SessionEngine::forward(std::span<const RowGroup> groups) {
  auto [inputs, logits_rows, adapters] = pack(groups, layout_);
  const std::int64_t wanted = logits_rows.size(0);
  add_states(groups, inputs);
  // A compiled engine wants at least one logits row; the middle of a prefill wants none.
  inputs.push_back(wanted > 0 ? logits_rows : at::zeros({1}, at::dtype(at::kLong)));
  std::vector<at::Tensor> outputs = run(parts_.model, std::move(inputs), groups);
  Output output{.logits = outputs.at(0).narrow(0, 0, wanted), .hidden = {}};
  if (outputs.size() > 1) output.hidden = outputs[1];
  return output;
}

void SessionEngine::feed(std::span<const RowGroup> groups, const at::Tensor& hidden) {
  if (parts_.loop) {
    auto [inputs, last_rows, adapters] = pack(groups, layout_);
    copy_states(copies(groups, &RowGroup::source, &RowGroup::state));
    add_states(groups, inputs);
    // The children of one row, as it wants those of some.
    inputs.push_back(last_rows.narrow(0, last_rows.size(0) - 1, 1));
    for (at::Tensor& column : greedy_sampling(1)) inputs.push_back(std::move(column));
    run(parts_.rollout, std::move(inputs), groups);
    copy_states(copies(groups, &RowGroup::state, &RowGroup::snapshot));
    return;
  }
  if (!parts_.model.session) {
    Part& part = parts_.step.session ? parts_.step : parts_.rollout;
    roll_out(part, groups, greedy_sampling(static_cast<std::int64_t>(groups.size())), hidden);
    return;
  }
  std::vector<at::Tensor> inputs = pack(groups, layout_).rows;
  inputs.push_back(hidden);
  run(parts_.model, std::move(inputs), groups);
}

SessionEngine::Rollout SessionEngine::rollout(std::span<const RowGroup> groups,
                                              const SamplingColumns& sampling,
                                              const at::Tensor& hidden, const StopRule& rule) {
  const bool is_first_step = rule.max_depth == 1 && parts_.step.session;
  const std::vector<at::Tensor> outputs =
      parts_.loop
          ? roll_out_by_pass(groups, sampling, rule)
          : roll_out(is_first_step ? parts_.step : parts_.rollout, groups, sampling, hidden);
  return {.tokens = outputs.at(0), .parents = outputs.at(1), .scores = outputs.at(2)};
}

void SessionEngine::compact(std::span<const std::int64_t> src_slots,
                            std::span<const std::int64_t> dst_slots) {
  if (src_slots.size() != dst_slots.size()) {
    throw std::logic_error("compact: as many source as destination slots are needed");
  }
  for (const auto& [shape, buffers] : alike_) {
    const auto& [count, size, dtype] = shape;
    if (!layout_.is_slots) {
      device_->move_rows(buffers, count * size, src_slots, dst_slots);
      continue;
    }
    // A slot cache is one of slots * heads blocks with one head each: it is moved head by head.
    device_->move_rows(buffers, size, rows_of_heads(src_slots, count),
                       rows_of_heads(dst_slots, count));
  }
}

void SessionEngine::move_states(const StateMoves& moves) {
  replay(moves.before);
  copy_states(moves.snapshots);
  replay(moves.behind);
}

void SessionEngine::copy_states(const Moves& moves) {
  if (moves.from.empty()) return;
  for (const at::Tensor& states : states_) {
    device_->move_rows(std::span(&states, 1), states.stride(0), moves.from, moves.to);
  }
}

void SessionEngine::replay(const TakenNodes& taken) {
  if (taken.empty()) return;
  if (!parts_.replay) throw std::logic_error("this engine was opened without its replay");
  std::vector<at::Tensor> inputs{host_copy(taken.slots), host_copy(taken.rows),
                                 host_copy(taken.start)};
  inputs.insert(inputs.end(), caches_.begin(), caches_.end());
  parts_.replay->run(std::move(inputs));
}

void SessionEngine::add_states(std::span<const RowGroup> groups,
                               std::vector<at::Tensor>& inputs) const {
  if (states_.empty()) return;
  std::vector<std::int32_t> slots;
  for (const RowGroup& group : groups) slots.push_back(group.state);
  inputs.push_back(host_copy(slots));
}

std::vector<std::int64_t> SessionEngine::rows_of_heads(std::span<const std::int64_t> slots,
                                                       std::int64_t heads) const {
  const std::int64_t length = layout_.tokens_per_block;
  std::vector<std::int64_t> rows;
  for (const std::int64_t slot : slots) {
    for (std::int64_t head = 0; head < heads; ++head) {
      rows.push_back((slot / length * heads + head) * length + slot % length);
    }
  }
  return rows;
}

std::vector<at::Tensor> SessionEngine::roll_out(Part& part, std::span<const RowGroup> groups,
                                                const SamplingColumns& sampling,
                                                const at::Tensor& hidden) {
  if (!part.session) throw std::logic_error("this engine was opened without a rollout");
  auto [inputs, last_rows, adapters] = pack(groups, layout_);
  inputs.push_back(last_rows);
  inputs.insert(inputs.end(), sampling.begin(), sampling.end());
  if (hidden.defined()) inputs.push_back(hidden);
  return run(part, std::move(inputs), groups);
}

std::vector<at::Tensor> SessionEngine::roll_out_by_pass(std::span<const RowGroup> groups,
                                                        const SamplingColumns& sampling,
                                                        const StopRule& rule) {
  auto [inputs, last_rows, adapters] = pack(groups, layout_);
  copy_states(copies(groups, &RowGroup::source, &RowGroup::state));
  add_states(groups, inputs);
  inputs.push_back(last_rows);
  inputs.insert(inputs.end(), sampling.begin(), sampling.end());
  const auto began = std::chrono::steady_clock::now();
  std::vector<at::Tensor> outputs =
      parts_.loop->run(*parts_.rollout.session, std::move(inputs), caches_, rule);
  count(began, parts_.loop->num_passes(), parts_.rollout, groups);
  copy_states(
      copies(groups, &RowGroup::state, &RowGroup::snapshot));  // later passes stepped others
  return outputs;
}

std::vector<at::Tensor> SessionEngine::run(Part& part, std::vector<at::Tensor> inputs,
                                           std::span<const RowGroup> groups) {
  inputs.insert(inputs.end(), caches_.begin(), caches_.end());
  const auto began = std::chrono::steady_clock::now();
  std::vector<at::Tensor> outputs = part.session->run(std::move(inputs));
  count(began, 1, part, groups);
  return outputs;
}

void SessionEngine::count(std::chrono::steady_clock::time_point began, std::int64_t calls,
                          const Part& part, std::span<const RowGroup> groups) {
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  num_calls_ += calls;
  traffic_.weight_bytes += calls * part.passes.weight_bytes;
  for (const RowGroup& group : groups) {
    traffic_.kv_bytes +=
        calls * part.passes.count * (group.context + group.num_rows()) * shape_.kv_bytes_per_token;
  }
}

}  // namespace trtspec
