#include <trtspec/error.hpp>
#include <trtspec/runtime/request.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>

namespace trtspec {

namespace {

constexpr double kMinTemperature = 1e-5;
constexpr double kMaxTemperature = 1e6;
constexpr double kMinRepetitionPenalty = 1e-6;
constexpr double kMaxBias = 1e30;
constexpr double kMaxLogprobs = 20;

void check_within(const char* name, double value, double low, double high) {
  if (std::isfinite(value) && low <= value && value <= high) return;
  std::ostringstream message;
  message << name << "=" << value << " must be between " << low << " and " << high;
  throw Error(message.str());
}

}  // namespace

void SamplingOptions::check() const {
  constexpr double kMaxInt32 = 2147483647.0;
  check_within("temperature", temperature, 0.0, kMaxTemperature);
  if (temperature > 0.0 && temperature < kMinTemperature) {
    std::ostringstream message;
    message << "temperature=" << temperature << " must be 0 (greedy) or at least "
            << kMinTemperature;
    throw Error(message.str());
  }
  check_within("top_k", static_cast<double>(top_k), -1.0, kMaxInt32);
  check_within("top_p", top_p, 0.0, 1.0);
  if (top_p == 0.0) throw Error("top_p=0 must be above 0 and at most 1 (1 is off)");
  check_within("min_p", min_p, 0.0, 1.0);
  check_within("max_tokens", static_cast<double>(max_tokens), 1.0, kMaxInt32);
  check_within("sample_index", static_cast<double>(sample_index), 0.0, kMaxInt32);
  check_within("repetition_penalty", logits.repetition_penalty, kMinRepetitionPenalty, 1e6);
  check_within("presence_penalty", logits.presence_penalty, -2.0, 2.0);
  check_within("frequency_penalty", logits.frequency_penalty, -2.0, 2.0);
  for (const auto& [token, bias] : logits.logit_bias) {
    check_within("logit_bias", bias, -kMaxBias, kMaxBias);
  }
  for (const auto& word : logits.bad_words) {
    if (word.empty()) throw Error("bad_words holds an empty entry, which would ban every token");
  }
  check_within("min_tokens", static_cast<double>(logits.min_tokens), 0.0, kMaxInt32);
  if (logits.min_tokens > max_tokens) {
    throw Error("min_tokens=" + std::to_string(logits.min_tokens) +
                " must not exceed max_tokens=" + std::to_string(max_tokens));
  }
  if (logprobs) check_within("logprobs", static_cast<double>(*logprobs), 0.0, kMaxLogprobs);
  if (num_speculative_tokens) {
    check_within("num_speculative_tokens", static_cast<double>(*num_speculative_tokens), 0.0,
                 kMaxInt32);
  }
}

void SamplingOptions::check_vocabulary(std::int64_t vocab_size) const {
  const auto check = [vocab_size](const char* option, std::int64_t token) {
    if (token >= 0 && token < vocab_size) return;
    throw Error(std::string(option) + " names token id " + std::to_string(token) +
                ", but the vocabulary has " + std::to_string(vocab_size) + " ids (0 to " +
                std::to_string(vocab_size - 1) + ")");
  };
  for (const auto& [token, bias] : logits.logit_bias) check("logit_bias", token);
  for (const auto& word : logits.bad_words) {
    for (const std::int64_t token : word) check("bad_words", token);
  }
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::error: return "error";
    case FinishReason::abort: return "abort";
    case FinishReason::none: break;
  }
  return "none";
}

Request Request::create(std::int64_t id, std::span<const std::int64_t> prompt,
                        SamplingOptions options, std::int64_t max_seq_len,
                        std::vector<std::int64_t> eos_token_ids) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length == 0) throw Error("the prompt is empty; it must have at least 1 token");
  if (length >= max_seq_len) {
    std::ostringstream message;
    message << "the prompt has " << length << " tokens, but max_seq_len=" << max_seq_len
            << " must hold the prompt and at least 1 output token; shorten the prompt to "
            << max_seq_len - 1 << " tokens or raise max_seq_len";
    throw Error(message.str());
  }
  options.check();
  Request request;
  request.id = id;
  request.tokens.assign(prompt.begin(), prompt.end());
  request.num_prompt_tokens = length;
  request.max_output_tokens = std::min(options.max_tokens, max_seq_len - length);
  request.max_draft_len = options.num_speculative_tokens.value_or(request.max_draft_len);
  if (!options.ignore_eos) request.end_tokens = std::move(eos_token_ids);
  request.end_tokens.insert(request.end_tokens.end(), options.stop_token_ids.begin(),
                            options.stop_token_ids.end());
  request.options = std::move(options);
  return request;
}

}  // namespace trtspec
