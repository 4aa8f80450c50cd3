#include <trtspec/error.hpp>
#include <trtspec/runtime/request.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace trtspec {

namespace {

constexpr double kMinTemperature = 1e-5;
constexpr double kMaxTemperature = 1e6;

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
  if (!options.ignore_eos) request.eos_token_ids = std::move(eos_token_ids);
  request.options = std::move(options);
  return request;
}

std::vector<std::int64_t> Request::end_tokens() const {
  std::vector<std::int64_t> ends = eos_token_ids;
  ends.insert(ends.end(), options.stop_token_ids.begin(), options.stop_token_ids.end());
  return ends;
}

FinishReason Request::reason_to_end(std::int64_t token, std::int64_t count) const {
  const auto is_in = [token](const std::vector<std::int64_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (is_in(eos_token_ids) || is_in(options.stop_token_ids)) return FinishReason::stop;
  return count >= max_output_tokens ? FinishReason::length : FinishReason::none;
}

}  // namespace trtspec
