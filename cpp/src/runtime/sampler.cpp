#include <ATen/ops/zeros.h>

#include <trtspec/acceptance.hpp>
#include <trtspec/emission.hpp>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/sampler.hpp>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace trtspec {

void SamplingTable::add(const Request& request, TreeView draft) {
  const auto rows = static_cast<std::size_t>(1 + draft.size());
  const SamplingOptions& options = request.options;
  const auto repeat = [rows](auto& column, auto value) {
    column.insert(column.end(), rows, static_cast<decltype(column[0] + 0)>(value));
  };
  repeat(temperature_, options.temperature);
  repeat(top_k_, std::max<std::int64_t>(options.top_k, 0));
  repeat(top_p_, options.top_p);
  repeat(min_p_, options.min_p);
  repeat(seed_, options.seed);
  repeat(sample_index_, options.sample_index);
  const std::int64_t first = request.num_output_tokens();
  output_index_.push_back(first);
  for (const std::int32_t depth : draft.depths()) output_index_.push_back(first + depth);
}

SamplingRows SamplingTable::view() const {
  return {temperature_.data(), top_k_.data(),        top_p_.data(),       min_p_.data(),
          seed_.data(),        sample_index_.data(), output_index_.data()};
}

SamplingColumns SamplingTable::columns() const {
  return {host_copy(temperature_), host_copy(top_k_), host_copy(top_p_),
          host_copy(min_p_),       host_copy(seed_),  host_copy(sample_index_),
          host_copy(output_index_)};
}

SamplingColumns greedy_sampling(std::int64_t count) {
  SamplingColumns columns;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kInt, at::kFloat, at::kFloat, at::kLong, at::kLong, at::kLong}) {
    columns.push_back(at::zeros({count}, at::dtype(dtype)));
  }
  return columns;
}

void check_logits(const at::Tensor& logits, std::int64_t rows) {
  const bool fits = logits.defined() && logits.dim() == 2 && logits.size(0) == rows &&
                    logits.size(1) > 0 && logits.scalar_type() == at::kFloat &&
                    logits.device().is_cpu();
  if (fits) return;
  std::ostringstream message;
  message << "the target must return float32 logits of " << rows << " rows on the CPU, got ";
  if (logits.defined()) {
    message << logits.sizes() << " of " << logits.scalar_type() << " on " << logits.device();
  } else {
    message << "none";
  }
  throw std::runtime_error(message.str());
}

VerifyInputs::VerifyInputs(std::span<const ScheduledRows> items, const DraftBatch& drafts)
    : items(items) {
  starts.push_back(0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].samples) {
      const TreeView draft = drafts[i];
      table.add(request_of(items[i]), draft);
      tokens.push_back(0);
      parents.push_back(-1);
      tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
      for (const std::int32_t parent : draft.parents) parents.push_back(parent + 1);
    }
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
  }
}

StepResult decode(const VerifyInputs& inputs, const std::int64_t* sampled,
                  const std::int32_t* accepted, std::int64_t width, const std::int32_t* emitted) {
  StepResult result;
  for (std::size_t i = 0; i < inputs.items.size(); ++i) {
    if (inputs.num_rows(i) == 0) {
      result.add();
      continue;
    }
    const std::int32_t* path = accepted + static_cast<std::int64_t>(i) * width;
    const auto start = std::size_t(inputs.starts[i]);
    const auto count = std::size_t(inputs.num_rows(i));
    const VerifiedRows rows{std::span(inputs.tokens).subspan(start, count),
                            std::span(inputs.parents).subspan(start, count),
                            {sampled + start, count}};
    const Request& request = request_of(inputs.items[i]);
    const TextEnd end = emit(rows, {path, std::size_t(emitted[i])}, request.end_tokens,
                             request.remaining_tokens(), result.tokens);
    result.add(end.reason);
    result.start.back() += std::int64_t(end.count);
    result.rows.insert(result.rows.end(), path, path + end.count);
  }
  return result;
}

StepResult verify(const VerifyInputs& inputs, const at::Tensor& logits, const SampleRows& sample) {
  const std::size_t count = inputs.items.size();
  std::vector<std::int64_t> sampled(inputs.tokens.size());
  std::int64_t width = 0;
  for (std::size_t i = 0; i < count; ++i) width = std::max(width, inputs.num_rows(i));
  if (width > 0) {
    check_logits(logits, inputs.table.size());
    const at::Tensor own = logits.contiguous();
    mask_logits(own.mutable_data_ptr<float>(), own.size(0), own.size(1), inputs.mask);
    sample(own, inputs.table.view(), sampled.data());
  }
  std::vector<std::int32_t> accepted(count * static_cast<std::size_t>(width));
  std::vector<std::int32_t> emitted(count);
  if (trtspec::accept(sampled.data(), inputs.tokens.data(), inputs.parents.data(),
                      inputs.starts.data(), std::int64_t(count), width, accepted.data(),
                      emitted.data(),
                      inputs.forced.empty() ? nullptr : inputs.forced.data()) >= 0) {
    throw std::logic_error("a draft has a node before its parent");
  }
  return decode(inputs, sampled.data(), accepted.data(), width, emitted.data());
}

}  // namespace trtspec
