#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/pass_rollout.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace trtspec {

namespace {

constexpr std::size_t kRowInputs = 8, kColumns = 7;
// Calls that the seconds of a pass are a mean of: fewer follow a single pause, more are late where
// the machine gets slower.
constexpr double kMeanOf = 8.0;

template <class T>
at::Tensor repeated(const at::Tensor& column, std::int64_t times, T more = 0) {
  const std::int64_t count = column.size(0);
  at::Tensor values = host_tensor({count * times}, column.scalar_type());
  const T* from = column.const_data_ptr<T>();
  T* to = values.mutable_data_ptr<T>();
  for (std::int64_t i = 0; i < count; ++i, to += times) std::fill(to, to + times, from[i] + more);
  return values;
}

// Rows of a buffer on the host, none of which is in both.
void copy_rows(const at::Tensor& buffer, const BeamStates::Pass& pass) {
  const auto bytes = static_cast<std::size_t>(buffer.stride(0)) * buffer.element_size();
  auto* data = static_cast<char*>(buffer.mutable_data_ptr());
  for (std::size_t i = 0; i < pass.from.size(); ++i) {
    std::memcpy(data + static_cast<std::size_t>(pass.to[i]) * bytes,
                data + static_cast<std::size_t>(pass.from[i]) * bytes, bytes);
  }
}

}  // namespace

std::vector<at::Tensor> beam_tensors(const BeamRows& beam, const at::Tensor& block_tables) {
  const std::int64_t rows = std::ssize(beam.tokens), batch = std::ssize(beam.context_lens);
  at::Tensor is_tree = host_tensor({batch}, at::kBool);
  std::fill_n(is_tree.mutable_data_ptr<bool>(), batch, true);
  return {host_copy(beam.tokens), host_copy(beam.positions),
          host_copy(beam.slots),  block_tables,
          host_copy(beam.starts), host_copy(beam.context_lens),
          std::move(is_tree),     host_copy(beam.masks).view({rows, -1})};
}

std::vector<RolloutRoot> rollout_roots(const RowPlaces& rows, const at::Tensor& last_rows) {
  const auto width = static_cast<std::size_t>(rows.block_tables.size(1));
  const auto* position = rows.positions.const_data_ptr<std::int64_t>();
  const auto* start = rows.query_start.const_data_ptr<std::int32_t>();
  const auto* context = rows.context_lens.const_data_ptr<std::int32_t>();
  const auto* root = last_rows.const_data_ptr<std::int64_t>();
  const auto* blocks = rows.block_tables.const_data_ptr<std::int32_t>();
  std::vector<RolloutRoot> roots;
  for (std::int64_t i = 0; i < last_rows.size(0); ++i, blocks += width) {
    const std::int64_t place = context[i] + root[i] - start[i];
    roots.push_back({position[root[i]], {blocks, width}, position[root[i]] - place});
  }
  return roots;
}

std::vector<at::Tensor> to_outputs(std::span<const DraftNodes> trees) {
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> scores;
  for (const DraftNodes& tree : trees) {
    tokens.insert(tokens.end(), tree.tokens.begin(), tree.tokens.end());
    for (const std::int64_t parent : tree.parents) {
      parents.push_back(static_cast<std::int32_t>(parent));
    }
    scores.insert(scores.end(), tree.scores.begin(), tree.scores.end());
  }
  const auto count = std::ssize(trees);
  return {host_copy(tokens).view({count, -1}), host_copy(parents).view({count, -1}),
          host_copy(scores).view({count, -1})};
}

PassRollout::PassRollout(const TreeShape& shape, std::int64_t tokens_per_block,
                         std::vector<std::int64_t> states)
    : levels_(shape), tokens_per_block_(tokens_per_block), state_places_(std::move(states)) {}

PassRollout::Tensors PassRollout::run(Session& session, Tensors inputs,
                                      std::span<const at::Tensor> caches, StopRule rule) {
  using Clock = std::chrono::steady_clock;
  const auto states_at = [&](std::int64_t place) -> const at::Tensor& {
    return caches[static_cast<std::size_t>(place)];
  };
  const std::int64_t num_states =
      state_places_.empty() ? 0 : states_at(state_places_.front()).size(0);
  inputs = begin(std::move(inputs), num_states, std::move(rule));
  while (!inputs.empty()) {
    inputs.insert(inputs.end(), caches.begin(), caches.end());
    const auto began = Clock::now();
    const Tensors found = session.run(std::move(inputs));
    const std::chrono::duration<double> took = Clock::now() - began;
    inputs = next(found.at(0), found.at(1), took.count());
    for (const std::int64_t place : state_places_) copy_rows(states_at(place), copies_);
  }
  return trees();
}

PassRollout::Tensors PassRollout::begin(Tensors inputs, std::int64_t num_states, StopRule rule) {
  const std::size_t last_rows = kRowInputs + (num_states > 0 ? 1 : 0);
  if (inputs.size() != last_rows + 1 + kColumns) {
    throw std::logic_error("a rollout takes packed rows, the roots' rows and sampling columns");
  }
  block_tables_ = inputs[3];
  columns_.assign(inputs.end() - kColumns, inputs.end());
  const RowPlaces rows{inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6], inputs[7]};
  growth_.emplace(levels_, rollout_roots(rows, inputs[last_rows]), tokens_per_block_,
                  inputs[7].size(1), std::move(rule));
  copies_ = {};
  beam_states_.reset();
  if (num_states > 0) {
    const at::Tensor& slots = inputs[kRowInputs];
    beam_states_.emplace(
        std::span(slots.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(slots.numel())),
        num_states);
  }
  rows_ = 0;
  num_passes_ = 1;
  return inputs;
}

PassRollout::Tensors PassRollout::next(const at::Tensor& ids, const at::Tensor& gains,
                                       double seconds) {
  if (rows_ > 0) {
    double& mean = seconds_.try_emplace(rows_, seconds).first->second;
    mean += (seconds - mean) / kMeanOf;
  }
  copies_ = {};
  const auto size = static_cast<std::size_t>(ids.numel());
  growth_->record({ids.const_data_ptr<std::int64_t>(), size}, {gains.const_data_ptr<float>(), size},
                  ids.size(1));
  if (!growth_->can_go_on()) return {};
  // Where nothing is known of such a pass, it is made.
  const auto known = seconds_.find(growth_->next_rows());
  if (known != seconds_.end() && !growth_->pays(known->second)) return {};
  BeamRows beam = growth_->next();
  rows_ = std::ssize(beam.tokens);
  ++num_passes_;
  Tensors inputs;
  if (!beam_states_) {
    inputs = beam_tensors(beam, block_tables_);
  } else {
    at::Tensor slots = split(beam);
    inputs = beam_tensors(beam, block_tables_.repeat_interleave(beam.width, 0));
    inputs.push_back(std::move(slots));
  }
  std::vector<std::int64_t> all(beam.tokens.size());
  std::iota(all.begin(), all.end(), 0);
  inputs.push_back(host_copy(all));
  for (at::Tensor& column : columns(beam.width, beam.depth)) inputs.push_back(std::move(column));
  return inputs;
}

PassRollout::Tensors PassRollout::trees() const { return to_outputs(growth_->trees()); }

at::Tensor PassRollout::split(BeamRows& beam) {
  copies_ = beam_states_->next(beam);
  const std::vector<std::int32_t> lengths = std::exchange(beam.context_lens, {});
  for (const std::int32_t length : lengths) {
    beam.context_lens.insert(beam.context_lens.end(), static_cast<std::size_t>(beam.width), length);
  }
  beam.starts.resize(beam.tokens.size() + 1);
  std::iota(beam.starts.begin(), beam.starts.end(), 0);
  return host_copy(copies_.slots);
}

PassRollout::Tensors PassRollout::columns(std::int64_t rows, std::int64_t depth) const {
  Tensors all;
  for (const at::Tensor& column : columns_) {
    const bool is_index = all.size() + 1 == columns_.size();
    if (column.scalar_type() == at::kFloat) {
      all.push_back(repeated<float>(column, rows));
    } else if (column.scalar_type() == at::kInt) {
      all.push_back(repeated<std::int32_t>(column, rows));
    } else {
      all.push_back(repeated<std::int64_t>(column, rows, is_index ? depth : 0));
    }
  }
  return all;
}

}  // namespace trtspec
