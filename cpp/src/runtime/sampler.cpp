#include <ATen/ops/zeros.h>

#include <trtspec/acceptance.hpp>
#include <trtspec/runtime/sampler.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace trtspec {

void SamplingTable::add(const Request& request, bool with_draft) {
  const auto rows = static_cast<std::size_t>(1 + (with_draft ? request.draft.size() : 0));
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
  output_index_.push_back(request.num_output_tokens());
  if (!with_draft) return;
  for (const std::int32_t depth : request.draft.depths()) {
    output_index_.push_back(request.num_output_tokens() + depth);
  }
}

SamplingRows SamplingTable::view() const {
  return {temperature_.data(), top_k_.data(),        top_p_.data(),       min_p_.data(),
          seed_.data(),        sample_index_.data(), output_index_.data()};
}

SamplingColumns SamplingTable::columns() const {
  SamplingColumns columns = greedy_sampling(size());
  const std::array<const void*, 7> values = {temperature_.data(), top_k_.data(),
                                             top_p_.data(),       min_p_.data(),
                                             seed_.data(),        sample_index_.data(),
                                             output_index_.data()};
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(columns[i].mutable_data_ptr(), values[i], columns[i].nbytes());
  }
  return columns;
}

SamplingColumns greedy_sampling(std::int64_t count) {
  SamplingColumns columns;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kInt, at::kFloat, at::kFloat, at::kLong, at::kLong, at::kLong}) {
    columns.push_back(at::zeros({count}, at::dtype(dtype)));
  }
  return columns;
}

namespace {

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

}  // namespace

std::vector<Verdict> verify(std::span<const Request* const> requests, const at::Tensor& logits,
                            Device& device) {
  SamplingTable table;
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> starts = {0};
  std::int64_t width = 0;
  for (const Request* request : requests) {
    table.add(*request, true);
    tokens.push_back(0);
    parents.push_back(-1);
    tokens.insert(tokens.end(), request->draft.tokens().begin(), request->draft.tokens().end());
    for (const std::int32_t parent : request->draft.parents()) parents.push_back(parent + 1);
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
    width = std::max(width, 1 + request->draft.size());
  }
  check_logits(logits, table.size());
  std::vector<std::int64_t> sampled(tokens.size());
  device.sample(logits.contiguous(), table.view(), sampled.data());

  std::vector<std::int32_t> accepted(requests.size() * static_cast<std::size_t>(width));
  std::vector<std::int32_t> emitted(requests.size());
  const auto count = static_cast<std::int64_t>(requests.size());
  if (trtspec::accept(sampled.data(), tokens.data(), parents.data(), starts.data(), count, width,
                      accepted.data(), emitted.data()) >= 0) {
    throw std::logic_error("a draft has a node before its parent");
  }
  std::vector<Verdict> verdicts(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::int32_t* path = accepted.data() + i * static_cast<std::size_t>(width);
    for (std::int32_t at = 0; at < emitted[i]; ++at) {
      const std::int64_t token = sampled[static_cast<std::size_t>(starts[i] + path[at])];
      verdicts[i].rows.push_back(path[at]);
      verdicts[i].tokens.push_back(token);
    }
    std::vector<std::int64_t>& tokens = verdicts[i].tokens;
    if (tokens.size() > 1 && tokens.back() < 0) {  // what came before stands; the next step fails
      tokens.pop_back();
      verdicts[i].rows.pop_back();
    }
    verdicts[i].failed = tokens.back() < 0;
  }
  return verdicts;
}

}  // namespace trtspec
