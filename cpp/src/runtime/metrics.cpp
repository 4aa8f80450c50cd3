#include <trtspec/runtime/metrics.hpp>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace trtspec {

namespace {

void count(std::vector<std::int64_t>& bins, std::size_t index, std::int64_t by = 1) {
  if (bins.size() <= index) bins.resize(index + 1, 0);
  bins[index] += by;
}

void add(std::vector<TreeView::OfSource>& sums, const std::vector<TreeView::OfSource>& more) {
  if (sums.size() < more.size()) sums.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    sums[i].drafted += more[i].drafted;
    sums[i].accepted += more[i].accepted;
  }
}

double ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

// [i]: the steps of `bins`, one bin a depth from 0 on, that came to depth i + 1, for each depth but
// 0 of `depths`.
std::vector<std::int64_t> steps_so_deep(const std::vector<std::int64_t>& bins, std::size_t depths) {
  std::vector<std::int64_t> steps(depths > 0 ? depths - 1 : 0, 0);
  std::int64_t sum = 0;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (i + 1 < bins.size()) sum += bins[i + 1];
    steps[i] = sum;
  }
  return steps;
}

}  // namespace

void SpeculativeMetrics::record(std::span<const std::int64_t> rows, const TreeView& drafted) {
  const std::int64_t emitted = std::ssize(rows), drafted_depth = drafted.max_depth();
  if (emitted < 1 || emitted > drafted_depth + 1) {
    throw std::logic_error("a step cannot emit more than its deepest draft and one token");
  }
  count(histogram_, static_cast<std::size_t>(emitted - 1));
  count(drafted_depths_, static_cast<std::size_t>(drafted_depth));
  num_draft_tokens_ += drafted.size();
  add(by_source_, drafted.by_source(rows));
}

void SpeculativeMetrics::merge(const SpeculativeMetrics& other) {
  for (std::size_t i = 0; i < other.histogram_.size(); ++i) {
    count(histogram_, i, other.histogram_[i]);
  }
  for (std::size_t i = 0; i < other.drafted_depths_.size(); ++i) {
    count(drafted_depths_, i, other.drafted_depths_[i]);
  }
  num_draft_tokens_ += other.num_draft_tokens_;
  add(by_source_, other.by_source_);
}

std::int64_t SpeculativeMetrics::num_steps() const {
  return std::accumulate(histogram_.begin(), histogram_.end(), std::int64_t{0});
}

std::int64_t SpeculativeMetrics::num_drafts() const {
  return num_steps() - (drafted_depths_.empty() ? 0 : drafted_depths_[0]);
}

std::int64_t SpeculativeMetrics::num_accepted_tokens() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < histogram_.size(); ++i) {
    sum += static_cast<std::int64_t>(i) * histogram_[i];
  }
  return sum;
}

std::vector<std::int64_t> SpeculativeMetrics::num_accepted_tokens_per_pos() const {
  return steps_so_deep(histogram_, drafted_depths_.size());
}

std::vector<std::int64_t> SpeculativeMetrics::num_drafts_per_pos() const {
  return steps_so_deep(drafted_depths_, drafted_depths_.size());
}

std::vector<double> SpeculativeMetrics::acceptance_rate_per_pos() const {
  const auto accepted = num_accepted_tokens_per_pos(), drafts = num_drafts_per_pos();
  std::vector<double> rates;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    rates.push_back(ratio(static_cast<double>(accepted[i]), static_cast<double>(drafts[i])));
  }
  return rates;
}

std::vector<std::int64_t> SpeculativeMetrics::num_draft_tokens_per_source() const {
  std::vector<std::int64_t> counts;
  for (const TreeView::OfSource& one : by_source_) counts.push_back(one.drafted);
  return counts;
}

std::vector<std::int64_t> SpeculativeMetrics::num_accepted_tokens_per_source() const {
  std::vector<std::int64_t> counts;
  for (const TreeView::OfSource& one : by_source_) counts.push_back(one.accepted);
  return counts;
}

double SpeculativeMetrics::acceptance_length() const {
  return ratio(static_cast<double>(num_emitted_tokens()), static_cast<double>(num_steps()));
}

double SpeculativeMetrics::acceptance_rate() const {
  return ratio(static_cast<double>(num_accepted_tokens()), static_cast<double>(num_draft_tokens_));
}

void SpeculativeMetrics::write(JsonWriter& out) const {
  out.key("acceptance_length").value(acceptance_length());
  out.key("acceptance_rate").value(acceptance_rate());
  out.key("num_steps").value(num_steps());
  out.key("num_drafts").value(num_drafts());
  out.key("num_draft_tokens").value(num_draft_tokens());
  out.key("num_accepted_tokens").value(num_accepted_tokens());
  out.key("num_emitted_tokens").value(num_emitted_tokens());
  out.key("num_accepted_tokens_per_pos").value(num_accepted_tokens_per_pos());
  out.key("num_drafts_per_pos").value(num_drafts_per_pos());
  out.key("acceptance_rate_per_pos").value(acceptance_rate_per_pos());
  out.key("num_draft_tokens_per_source").value(num_draft_tokens_per_source());
  out.key("num_accepted_tokens_per_source").value(num_accepted_tokens_per_source());
  out.key("histogram").value(histogram_);
}

double StepClock::host_seconds() const {
  return std::max(seconds - target_seconds - draft_seconds, 0.0);
}

void ExecutorMetrics::record_step(const StepClock& step) {
  ++num_engine_steps_;
  last_step_ = step;
  clock_.seconds += step.seconds;
  clock_.target_seconds += step.target_seconds;
  clock_.draft_seconds += step.draft_seconds;
  clock_.target_calls += step.target_calls;
  clock_.draft_calls += step.draft_calls;
}

void ExecutorMetrics::record_prefix(std::int64_t queried, std::int64_t found) {
  num_prefix_cache_queries_ += queried;
  num_prefix_cache_hits_ += found;
}

void ExecutorMetrics::record_verify(std::int64_t request_id, std::span<const std::int64_t> rows,
                                    const TreeView& drafted) {
  requests_[request_id].record(rows, drafted);
  total_.record(rows, drafted);
}

const SpeculativeMetrics& ExecutorMetrics::of(std::int64_t request_id) const {
  static const SpeculativeMetrics none;
  const auto found = requests_.find(request_id);
  return found == requests_.end() ? none : found->second;
}

void ExecutorMetrics::write(JsonWriter& out) const {
  constexpr double kMillis = 1e3;
  total_.write(out);
  out.key("num_engine_calls").value(clock_.target_calls + clock_.draft_calls);
  out.key("num_target_calls").value(clock_.target_calls);
  out.key("num_draft_calls").value(clock_.draft_calls);
  out.key("num_engine_steps").value(num_engine_steps_);
  out.key("num_prefix_cache_queries").value(num_prefix_cache_queries_);
  out.key("num_prefix_cache_hits").value(num_prefix_cache_hits_);
  out.key("step_ms").value(ratio(clock_.seconds * kMillis, static_cast<double>(num_engine_steps_)));
  out.key("target_ms").value(clock_.target_seconds * kMillis);
  out.key("draft_ms").value(clock_.draft_seconds * kMillis);
  out.key("host_ms").value(clock_.host_seconds() * kMillis);
  out.key("host_share").value(ratio(clock_.host_seconds(), clock_.seconds));
}

}  // namespace trtspec
