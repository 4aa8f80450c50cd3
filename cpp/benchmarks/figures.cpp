#include "figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>

namespace trtspec::bench {

namespace {

constexpr double kHighestShare = 1.05;  // of the floor in the time of steps; more is no floor
constexpr char kNotMeasured[] = "floor not measured";

class FigureList {
 public:
  void add(std::string name, std::string unit, std::optional<double> value) {
    figures_.push_back({std::move(name), std::move(unit), value});
  }
  void count(std::string name, std::int64_t value) {
    figures_.push_back({std::move(name), "", static_cast<double>(value), true});
  }

  // The mean, the extremes and percentiles by nearest rank; zeros without a value.
  void spread(const std::string& name, const std::string& unit, std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto size = static_cast<double>(values.size());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    const auto rank = [&](double share) {
      if (values.empty()) return 0.0;
      const double place = std::max(std::ceil(share * size), 1.0);
      return values[static_cast<std::size_t>(place) - 1];
    };
    add("avg_" + name, unit, values.empty() ? 0.0 : sum / size);
    add("max_" + name, unit, rank(1.0));
    add("min_" + name, unit, rank(0.0));
    add("p99_" + name, unit, rank(0.99));
    add("p90_" + name, unit, rank(0.90));
    add("p50_" + name, unit, rank(0.50));
  }

  std::vector<Figure> take() { return std::move(figures_); }

 private:
  std::vector<Figure> figures_;
};

double ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

void add_throughput(FigureList& list, const RunResult& result) {
  std::int64_t errors = 0;
  std::int64_t tokens = 0;
  for (const Record& record : result.records) {
    errors += record.failed() ? 1 : 0;
    tokens += std::ssize(record.tokens);
  }
  const auto finished = std::ssize(result.records) - errors;
  list.count("num_samples", std::ssize(result.records));
  list.count("num_error_samples", errors);
  list.count("num_output_tokens", tokens);
  list.add("total_latency", "ms", result.seconds * 1e3);
  list.add("seq_throughput", "seq/sec", ratio(static_cast<double>(finished), result.seconds));
  list.add("token_throughput", "token/sec", ratio(static_cast<double>(tokens), result.seconds));
}

void add_acceptance(FigureList& list, const SpeculativeMetrics& metrics) {
  // The first name is what users of other benchmarks look for; it is a length, not a rate.
  list.add("avg_acceptance_rate", "tokens/decoding steps", metrics.acceptance_length());
  list.add("acceptance_length", "tokens/step", metrics.acceptance_length());
  list.add("acceptance_rate", "accepted/drafted", metrics.acceptance_rate());
  const std::vector<double> rates = metrics.acceptance_rate_per_pos();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    list.add("acceptance_rate_pos_" + std::to_string(i + 1), "accepted/drafting step", rates[i]);
  }
  list.count("num_draft_tokens", metrics.num_draft_tokens());
  list.count("num_accepted_tokens", metrics.num_accepted_tokens());
}

void add_latencies(FigureList& list, const RunResult& result) {
  const auto collect = [&](auto&& value) {
    std::vector<double> values;
    for (const Record& record : result.records) {
      if (record.failed()) continue;
      if (const std::optional<double> v = value(record)) values.push_back(*v);
    }
    return values;
  };
  using Seconds = std::optional<double>;
  const auto in_ms = [](const Seconds& value) { return value ? Seconds(*value * 1e3) : value; };
  list.spread("sequence_latency", "ms",
              collect([](const Record& r) { return Seconds(r.latency() * 1e3); }));
  list.spread("time_to_first_token", "ms",
              collect([](const Record& r) { return Seconds(r.time_to_first_token() * 1e3); }));
  list.spread("inter_token_latency", "ms",
              collect([&](const Record& r) { return in_ms(r.inter_token()); }));
  // A text whose further tokens all came in the step of its first has no rate.
  list.spread("user_tokens_per_second", "tokens/sec/user", collect([](const Record& r) {
                const Seconds between = r.inter_token();
                return between && *between > 0.0 ? Seconds(1.0 / *between) : Seconds();
              }));
  list.spread("request_queueing_latency", "ms",
              collect([](const Record& r) { return Seconds(r.queueing() * 1e3); }));
}

void add_steps(FigureList& list, const ExecutorMetrics& metrics) {
  const StepClock& clock = metrics.clock();
  const auto steps = static_cast<double>(metrics.num_engine_steps());
  list.count("num_engine_steps", metrics.num_engine_steps());
  list.count("num_target_calls", clock.target_calls);
  list.count("num_draft_calls", clock.draft_calls);
  list.add("step_time", "ms/step", ratio(clock.seconds * 1e3, steps));
  list.add("draft_time", "ms/step", ratio(clock.draft_seconds * 1e3, steps));
  list.add("target_time", "ms/step", ratio(clock.target_seconds * 1e3, steps));
  list.add("host_time", "ms/step", ratio(clock.host_seconds() * 1e3, steps));
  list.add("host_share", "host/step", ratio(clock.host_seconds(), clock.seconds));
}

void add_floor(FigureList& list, const VerifySteps& verify, double read_bandwidth) {
  const auto steps = static_cast<double>(verify.count);
  const auto weights = static_cast<double>(verify.traffic.weight_bytes);
  const auto kv = static_cast<double>(verify.traffic.kv_bytes);
  const double floor = ratio(weights + kv, read_bandwidth);
  list.add("read_bandwidth", "GB/sec", read_bandwidth / 1e9);
  list.count("num_verify_steps", verify.count);
  list.add("verify_step_time", "ms/step", ratio(verify.seconds * 1e3, steps));
  list.add("weights_read", "MB/step", ratio(weights / 1e6, steps));
  list.add("kv_read", "MB/step", ratio(kv / 1e6, steps));
  const double share = ratio(floor, verify.seconds);
  const bool is_measured = read_bandwidth > 0.0 && share <= kHighestShare;
  using Measured = std::optional<double>;
  list.add("memory_floor", "ms/step", is_measured ? ratio(floor * 1e3, steps) : Measured());
  list.add("memory_floor_share", "floor/step", is_measured ? share : Measured());
}

std::string value_text(const Figure& figure) {
  if (!figure.value) return kNotMeasured;
  char text[64];
  std::snprintf(text, sizeof text, figure.is_count ? "%.0f" : "%.4f", *figure.value);
  return text;
}

std::string header(const Figure& figure) {
  return figure.unit.empty() ? figure.name : figure.name + "(" + figure.unit + ")";
}

}  // namespace

std::vector<Figure> make_figures(const RunResult& result, double read_bandwidth) {
  FigureList list;
  add_throughput(list, result);
  add_acceptance(list, result.metrics.total());
  add_latencies(list, result);
  add_steps(list, result.metrics);
  add_floor(list, result.verify, read_bandwidth);
  return list.take();
}

std::string benchmark_lines(const std::vector<Figure>& figures) {
  std::string text;
  for (const Figure& figure : figures) {
    text += "[BENCHMARK] " + header(figure) + " " + value_text(figure) + "\n";
  }
  return text;
}

std::string csv_text(const std::vector<Figure>& figures) {
  std::string names;
  std::string values;
  for (const Figure& figure : figures) {
    if (!names.empty()) {
      names.push_back(',');
      values.push_back(',');
    }
    names += header(figure);
    values += value_text(figure);
  }
  return names + "\n" + values + "\n";
}

}  // namespace trtspec::bench
