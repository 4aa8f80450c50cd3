// Run: samples sent to an executor under a load, and what became of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <trtspec/runtime/engine_runtime.hpp>
#include <vector>

#include "options.hpp"
#include "samples.hpp"

namespace trtspec::bench {

// One request. Times are seconds since the start of the measurement.
struct Record {
  double arrival = 0.0;      // when it was to be sent
  double scheduled = 0.0;    // begin of the first step with a row of it
  double first_token = 0.0;  // end of the step that emitted it
  double finish = 0.0;
  std::int64_t num_input_tokens = 0;
  std::vector<std::int64_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // of each token, where they were asked for
  FinishReason finish_reason = FinishReason::none;
  std::string error;  // why, if it failed
  SpeculativeMetrics metrics;

  bool failed() const { return finish_reason == FinishReason::error; }
  double latency() const { return finish - arrival; }
  double time_to_first_token() const { return first_token - arrival; }
  double queueing() const { return scheduled - arrival; }
  // Mean seconds between tokens, of more than one.
  std::optional<double> inter_token() const;
};

// Steps that only verified: no row of a prompt in them.
struct VerifySteps {
  std::int64_t count = 0;
  double seconds = 0.0;
  EngineTraffic traffic;  // of target and draft
};

struct RunResult {
  std::vector<Record> records;  // in the order of the samples
  double seconds = 0.0;         // from the first arrival to the last finish
  ExecutorMetrics metrics;      // of the measured requests
  VerifySteps verify;
};

// Runs the warm-up, then the measurement. A request that the executor refuses or that fails is
// recorded as such, and the others go on. Iterations are logged to standard output if asked for.
RunResult run_samples(EngineRuntime& runtime, const std::vector<Sample>& samples,
                      const Options& options, const EngineFolder& folder,
                      const SchedulerLimits& limits);

}  // namespace trtspec::bench
