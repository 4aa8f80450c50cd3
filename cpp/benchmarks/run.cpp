#include "run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <trtspec/json.hpp>
#include <unordered_set>
#include <utility>

namespace trtspec::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

EngineTraffic total_traffic(const EngineRuntime& runtime) {
  EngineTraffic sum = runtime.target().traffic();
  if (const SessionEngine* draft = runtime.draft()) {
    sum.weight_bytes += draft->traffic().weight_bytes;
    sum.kv_bytes += draft->traffic().kv_bytes;
  }
  return sum;
}

// When each request is to be sent; all at 0 without a rate.
std::vector<double> arrivals(std::size_t count, const Options& options) {
  std::vector<double> times(count, 0.0);
  if (!options.request_rate) return times;
  std::mt19937_64 random(static_cast<std::uint64_t>(options.sampling.seed));
  std::exponential_distribution<double> delay(*options.request_rate);
  for (std::size_t i = 1; i < count; ++i) {
    times[i] =
        times[i - 1] + (options.exponential_delays ? delay(random) : 1.0 / *options.request_rate);
  }
  return times;
}

// Sends requests, one a sample, and steps the executor until all have ended.
class Driver {
 public:
  Driver(EngineRuntime& runtime, const Options& options, const SchedulerLimits& limits,
         std::int64_t first_id)
      : runtime_(runtime), options_(options), limits_(limits), first_id_(first_id) {}

  RunResult run(const std::vector<Sample>& samples, const std::vector<double>& times,
                std::size_t concurrency, bool log_iterations) {
    result_.records.resize(samples.size());
    Executor& executor = runtime_.executor();
    const Clock::time_point start = Clock::now();
    std::size_t sent = 0;
    while (sent < samples.size() || executor.has_work()) {
      const double now = seconds_since(start);
      while (sent < samples.size() && times[sent] <= now && sent - ended_ < concurrency) {
        // With a fixed number under way, a request arrives when its place is free.
        send(sent, samples[sent], options_.concurrency ? now : times[sent]);
        ++sent;
      }
      if (executor.has_work()) {
        step(start, log_iterations);
      } else if (sent < samples.size() && times[sent] > now) {
        std::this_thread::sleep_for(std::chrono::duration<double>(times[sent] - now));
      }
    }
    for (const Record& record : result_.records) {
      result_.seconds = std::max(result_.seconds, record.finish);
    }
    result_.metrics = executor.metrics();
    return std::move(result_);
  }

 private:
  void send(std::size_t index, const Sample& sample, double now) {
    Record& record = result_.records[index];
    record.arrival = record.scheduled = record.first_token = record.finish = now;
    record.num_input_tokens = static_cast<std::int64_t>(sample.input_ids.size());
    SamplingOptions sampling = options_.sampling;
    sampling.max_tokens = sample.output_len;
    // Wraps round, as seeds are any 64 bits.
    sampling.seed = static_cast<std::int64_t>(static_cast<std::uint64_t>(sampling.seed) + index);
    try {
      runtime_.executor().add(Request::create(first_id_ + static_cast<std::int64_t>(index),
                                              sample.input_ids, sampling, limits_.max_seq_len,
                                              options_.eos_ids));
    } catch (const std::exception& error) {
      record.finish_reason = FinishReason::error;
      record.error = error.what();
      ++ended_;
    }
  }

  void step(Clock::time_point start, bool log) {
    Executor& executor = runtime_.executor();
    const double began = seconds_since(start);
    const std::int64_t verified = executor.metrics().total().num_steps();
    const EngineTraffic before = total_traffic(runtime_);
    const std::vector<StepOutput> outputs = executor.step();
    const double ended = seconds_since(start);
    for (const StepOutput& output : outputs) take(output, began, ended);
    const std::int64_t generating = executor.metrics().total().num_steps() - verified;
    if (generating == static_cast<std::int64_t>(outputs.size())) {
      const EngineTraffic after = total_traffic(runtime_);
      VerifySteps& verify = result_.verify;
      ++verify.count;
      verify.seconds += executor.metrics().last_step().seconds;
      verify.traffic.weight_bytes += after.weight_bytes - before.weight_bytes;
      verify.traffic.kv_bytes += after.kv_bytes - before.kv_bytes;
    }
    if (log) log_step(outputs, generating, ended);
  }

  void take(const StepOutput& output, double began, double ended) {
    Executor& executor = runtime_.executor();
    Record& record = result_.records[static_cast<std::size_t>(output.request_id - first_id_)];
    if (seen_.insert(output.request_id).second) record.scheduled = began;
    if (record.tokens.empty() && !output.tokens.empty()) record.first_token = ended;
    record.tokens.insert(record.tokens.end(), output.tokens.begin(), output.tokens.end());
    record.logprobs.insert(record.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    if (output.finish_reason == FinishReason::none) return;
    record.finish = ended;
    record.finish_reason = output.finish_reason;
    record.error = output.error;
    record.metrics = executor.metrics().of(output.request_id);
    executor.release_metrics(output.request_id);
    ++ended_;
  }

  void log_step(const std::vector<StepOutput>& outputs, std::int64_t generating, double ended) {
    const Executor& executor = runtime_.executor();
    const StepClock& clock = executor.metrics().last_step();
    std::int64_t emitted = 0;
    for (const StepOutput& output : outputs) emitted += std::ssize(output.tokens);
    JsonWriter line(0);
    line.begin_object();
    line.key("iteration").value(executor.metrics().num_engine_steps());
    line.key("time_ms").value(ended * 1e3);
    line.key("num_scheduled").value(static_cast<std::int64_t>(outputs.size()));
    line.key("num_generating").value(generating);
    line.key("num_running").value(executor.num_running());
    line.key("num_waiting").value(executor.num_waiting());
    line.key("kv_cache_usage").value(executor.kv_cache_usage());
    line.key("num_emitted_tokens").value(emitted);
    line.key("step_ms").value(clock.seconds * 1e3);
    line.key("target_ms").value(clock.target_seconds * 1e3);
    line.key("draft_ms").value(clock.draft_seconds * 1e3);
    std::printf("[ITERATION] %s\n", line.end_object().text().c_str());
  }

  EngineRuntime& runtime_;
  const Options& options_;
  const SchedulerLimits& limits_;
  std::int64_t first_id_;
  std::size_t ended_ = 0;
  std::unordered_set<std::int64_t> seen_;
  RunResult result_;
};

// Requests as long as samples, over other tokens, so that no prefix of a sample is cached by them.
std::vector<Sample> warm_up_samples(const std::vector<Sample>& samples, std::int64_t count,
                                    std::int64_t vocab_size) {
  std::vector<Sample> made;
  for (std::int64_t i = 0; i < count; ++i) {
    made.push_back(samples[static_cast<std::size_t>(i) % samples.size()]);
    for (std::int64_t& token : made.back().input_ids) token = (token + 1 + i) % vocab_size;
  }
  return made;
}

}  // namespace

std::optional<double> Record::inter_token() const {
  if (tokens.size() < 2) return std::nullopt;
  return (finish - first_token) / static_cast<double>(tokens.size() - 1);
}

RunResult run_samples(EngineRuntime& runtime, const std::vector<Sample>& samples,
                      const Options& options, const EngineFolder& folder,
                      const SchedulerLimits& limits) {
  constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  const std::vector<Sample> warm =
      warm_up_samples(samples, options.warm_up, folder.target.vocab_size);
  Driver(runtime, options, limits, 0)
      .run(warm, std::vector<double>(warm.size(), 0.0), kAll, /*log_iterations=*/false);
  runtime.executor().reset_metrics();
  runtime.executor().forget_ended();
  const std::size_t concurrency =
      options.concurrency ? static_cast<std::size_t>(*options.concurrency) : kAll;
  return Driver(runtime, options, limits, options.warm_up)
      .run(samples, arrivals(samples.size(), options), concurrency, options.log_iteration_data);
}

}  // namespace trtspec::bench
