#include <trtspec/runtime/verification.hpp>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace trtspec {

namespace {

TokenLogprobs logprobs_at(const at::Tensor& row, std::int64_t token, std::int64_t count) {
  const auto [values, ids] =
      at::topk(row, std::min(count, row.size(0)), /*dim=*/-1, /*largest=*/true, /*sorted=*/true);
  TokenLogprobs made{token, row.const_data_ptr<float>()[token], {}};
  const auto* best = ids.const_data_ptr<std::int64_t>();
  const auto* logprobs = values.const_data_ptr<float>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) made.top.emplace_back(best[i], logprobs[i]);
  return made;
}

}  // namespace

const LogitsProcessor* RequestProcessors::of(const Request& request) {
  if (!request.options.logits.changes()) return nullptr;
  LogitsProcessor& processor = processors_
                                   .try_emplace(request.id, request.options.logits,
                                                request.end_tokens, request.num_prompt_tokens)
                                   .first->second;
  processor.extend(request.tokens);
  return &processor;
}

StepResult verify(std::span<const ScheduledRows> items, const DraftBatch& drafts,
                  RequestProcessors& processors, const at::Tensor& logits, Device& device) {
  std::vector<const LogitsProcessor*> changes;
  bool wants_logits = false;
  for (const ScheduledRows& item : items) {
    const Request& request = request_of(item);
    changes.push_back(item.samples ? processors.of(request) : nullptr);
    wants_logits |= changes.back() || (item.samples && request.options.logprobs);
  }
  const VerifyInputs inputs(items, drafts);
  if (!wants_logits) {
    return verify(inputs, logits,
                  [&device](const at::Tensor& rows, const SamplingRows& params, std::int64_t* ids) {
                    device.sample(rows, params, ids);
                  });
  }
  check_logits(logits, inputs.table.size());
  const at::Tensor host = device.to_host(logits);
  std::vector<at::Tensor> raw(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const at::Tensor own = host.narrow(0, inputs.starts[i], inputs.num_rows(i));
    if (request_of(items[i]).options.logprobs) raw[i] = at::log_softmax(own, -1);
    if (changes[i]) {
      changes[i]->apply(drafts[i], own.mutable_data_ptr<float>(), own.size(1));
    }
  }
  StepResult result = verify(
      inputs, host, [](const at::Tensor& rows, const SamplingRows& params, std::int64_t* ids) {
        sample(rows.const_data_ptr<float>(), rows.size(0), rows.size(1), params, ids);
      });
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!raw[i].defined()) continue;
    for (std::int64_t at = result.start[i]; at < result.start[i + 1]; ++at) {
      const auto place = static_cast<std::size_t>(at);
      result.logprobs[i].push_back(logprobs_at(raw[i].select(0, result.rows[place]),
                                               result.tokens[place],
                                               *request_of(items[i]).options.logprobs));
    }
  }
  return result;
}

}  // namespace trtspec
