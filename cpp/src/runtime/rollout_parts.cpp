#include "rollout_parts.hpp"

#include <algorithm>
#include <stdexcept>

namespace trtspec {

namespace {

// The sampling values of the rows of all requests.
class RowValues {
 public:
  RowValues(std::span<const at::Tensor> columns, const SampledDepths& depths)
      : temperature_(repeated<float>(columns[0], depths.rows)),
        top_k_(repeated<std::int32_t>(columns[1], depths.rows)),
        top_p_(repeated<float>(columns[2], depths.rows)),
        min_p_(repeated<float>(columns[3], depths.rows)),
        seed_(repeated<std::int64_t>(columns[4], depths.rows)),
        sample_index_(repeated<std::int64_t>(columns[5], depths.rows)),
        output_index_(repeated<std::int64_t>(columns[6], depths.rows)) {
    for (std::size_t i = 0; i < output_index_.size(); ++i) {
      output_index_[i] += depths.depth + depths.step * (static_cast<std::int64_t>(i) % depths.rows);
    }
  }

  SamplingRows view() const {
    return {temperature_.data(), top_k_.data(),        top_p_.data(),       min_p_.data(),
            seed_.data(),        sample_index_.data(), output_index_.data()};
  }

 private:
  template <class T>
  static std::vector<T> repeated(const at::Tensor& column, std::int64_t times) {
    std::vector<T> values;
    const T* data = column.const_data_ptr<T>();
    for (std::int64_t i = 0; i < column.size(0); ++i) {
      values.insert(values.end(), static_cast<std::size_t>(times), data[i]);
    }
    return values;
  }

  std::vector<float> temperature_;
  std::vector<std::int32_t> top_k_;
  std::vector<float> top_p_;
  std::vector<float> min_p_;
  std::vector<std::int64_t> seed_;
  std::vector<std::int64_t> sample_index_;
  std::vector<std::int64_t> output_index_;
};

}  // namespace

RolloutInputs RolloutInputs::of(std::span<const at::Tensor> inputs, std::size_t num_caches) {
  const EngineInputs engine = EngineInputs::of(inputs, num_caches);
  if (engine.extra.size() < 1 + kColumns) throw std::logic_error("a rollout lacks inputs");
  const bool reads_states = engine.extra.size() > 1 + kColumns;
  return {engine, engine.extra[0], engine.extra.subspan(1, kColumns),
          reads_states ? engine.extra[1 + kColumns] : at::Tensor()};
}

std::int64_t RolloutInputs::slot(std::int64_t request, std::int64_t position,
                                 std::int64_t tokens_per_block) const {
  const at::Tensor& tables = engine.rows.block_tables;
  const std::int64_t column = position / tokens_per_block;
  const std::int64_t block =
      column < tables.size(1)
          ? tables.const_data_ptr<std::int32_t>()[request * tables.size(1) + column]
          : -1;
  if (block < 0) throw std::logic_error("a rollout writes behind the blocks of a request");
  return block * tokens_per_block + position % tokens_per_block;
}

Candidates draft_rows(DraftNetwork& network, const at::Tensor& ready,
                      std::span<const at::Tensor> sampling, const SampledDepths& depths,
                      std::int64_t count) {
  const at::Tensor logits = network.head(ready).contiguous();
  const std::int64_t rows = logits.size(0);
  const auto size = static_cast<std::size_t>(rows * count);
  Candidates found{std::vector<std::int64_t>(size), std::vector<float>(size), count};
  network.device().draft_candidates(logits, RowValues(sampling, depths).view(), network.token_map(),
                                    count, found.ids.data(), found.gains.data());
  // Rounding lets a certain child's exceed 0 by 1e-16; it would then outrank its parent.
  for (float& gain : found.gains) gain = std::min(gain, 0.0F);
  return found;
}

}  // namespace trtspec
