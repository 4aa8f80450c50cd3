// The files that a benchmark leaves behind.
#pragma once

#include <string>
#include <vector>

#include "figures.hpp"
#include "options.hpp"
#include "run.hpp"

namespace trtspec::bench {

// Where and on what a run took place.
struct Setting {
  const Options& options;
  const EngineFolder& folder;
  const SchedulerLimits& limits;
  const Speculation& speculation;
  const Libraries& libraries;
  std::int64_t kv_cache_tokens;
};

// Figures, executor and speculation metrics, flags, engine and machine as one JSON object.
std::string report_json(const Setting& setting, const RunResult& result,
                        const std::vector<Figure>& figures);
// {"responses": [{"id", "input_len", "tokens", "finish_reason", "error", "logprobs", "metrics"},
// ...]} in the order of the samples; "error" and "logprobs" are left out where there are none. Of
// each token these are {"token", "logprob", "top": {id: logprob, ...}}.
std::string responses_json(const RunResult& result);

}  // namespace trtspec::bench
