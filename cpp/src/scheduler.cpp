#include "trtspec/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "trtspec/error.hpp"

namespace trtspec {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace

std::int64_t DraftLimits::useful_nodes(std::int64_t depth) const {
  if (depth <= 0) return 0;
  return max_nodes == max_depth ? std::min(max_nodes, depth) : max_nodes;
}

Scheduler::Scheduler(ResourceManager& resources, const SchedulerLimits& limits, DraftLimits drafts)
    : resources_(resources), limits_(limits), drafts_(std::move(drafts)) {
  if (limits.max_batch_size < 1) {
    throw Error(text("max_batch_size=", limits.max_batch_size, " must be at least 1"));
  }
  if (limits.max_num_tokens < limits.max_batch_size) {
    throw Error(text("max_num_tokens=", limits.max_num_tokens,
                     " must be at least max_batch_size=", limits.max_batch_size,
                     ", so that every request of a full batch gets a row; raise the former or "
                     "lower the latter"));
  }
  if (drafts_.slots.size() != resources.num_drafts()) {
    throw Error(text("the drafter needs ", drafts_.slots.size(), " draft KV caches, but there are ",
                     resources.num_drafts()));
  }
}

void Scheduler::check_fits(const Sequence& sequence) const {
  const std::int64_t total = sequence.num_prompt_tokens + sequence.max_output_tokens;
  const std::string parts = text(sequence.num_prompt_tokens, " prompt tokens + ",
                                 sequence.max_output_tokens, " output tokens");
  if (sequence.max_output_tokens < 1 || total > limits_.max_seq_len) {
    throw Error(text(parts, " do not fit max_seq_len=", limits_.max_seq_len,
                     ", or leave no output; shorten the prompt or lower max_tokens"));
  }
  const auto extra_of = [&](std::size_t i) {
    return i == 0 ? drafts_.useful_nodes(sequence.max_draft_len) : drafts_.slots[i - 1];
  };
  const auto held_by = [&](std::size_t i) {
    return resources_.cache(i).rows_held(total, limits_.max_num_tokens) + extra_of(i);
  };
  std::size_t worst = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const std::size_t num_drafts = sequence.may_draft() ? resources_.num_drafts() : 0;
  for (std::size_t i = 0; i <= num_drafts; ++i) {
    const std::int64_t spare = resources_.cache(i).capacity() - held_by(i);
    if (spare < least) worst = i, least = spare;
  }
  if (least >= 0) return;
  const KVCache& cache = resources_.cache(worst);
  const std::int64_t extra = extra_of(worst), held = held_by(worst);
  const std::string name = worst == 0 ? "target" : worst == 1 ? "draft" : text("draft ", worst);
  const std::string at_once = held == total + extra ? "" : text(", ", held, " of them at once");
  throw Error(text(parts, " + ", extra, worst == 0 ? " draft nodes" : " draft slots", " = ",
                   total + extra, " tokens", at_once, ", but the ", name, " KV cache holds ",
                   cache.capacity(), " (", cache.num_blocks(), " blocks of ", cache.block_size(),
                   "); lower max_tokens, shorten the prompt or enlarge the KV cache"));
}

void Scheduler::add(Sequence& sequence) {
  check_fits(sequence);
  waiting_.push_back(&sequence);
}

bool Scheduler::finish(Sequence& sequence) {
  has_reserved_ = false;
  const auto running = std::find(running_.begin(), running_.end(), &sequence);
  if (running != running_.end()) {
    running_.erase(running);
    if (sequence.in_flight.launches > 0) {
      resting_.push_back(&sequence);
    } else {
      resources_.free(sequence);
    }
    return true;
  }
  const auto waiting = std::find(waiting_.begin(), waiting_.end(), &sequence);
  require(waiting != waiting_.end(), "an unknown request cannot finish");
  waiting_.erase(waiting);
  std::erase(preempted_, &sequence);
  return false;
}

void Scheduler::reorder(std::span<Sequence* const> waiting) {
  std::vector<Sequence*> before = this->waiting(), after(waiting.begin(), waiting.end());
  std::ranges::sort(before);  // is_permutation would take the square of a long queue's length
  std::ranges::sort(after);
  if (before != after) {
    throw std::invalid_argument("the waiting requests in another order must be the same requests");
  }
  waiting_.assign(waiting.begin(), waiting.end());
}

std::int64_t Scheduler::reserve_rows() {
  ready_.clear();
  is_short_ = must_collect_ = false;
  std::int64_t generating = 0;
  bool may_draft = false;
  for (std::size_t index = 0; index < running_.size(); ++index) {
    Sequence& sequence = *running_[index];
    const InFlight& ahead = sequence.in_flight;
    if (sequence.remaining_tokens() <= ahead.least) continue;  // its text has ended
    const std::int64_t start = resources_.target_committed(sequence) + ahead.rows;
    const bool generates = start == sequence.size() + ahead.least - 1;
    const auto reserve = [&] {
      // A generating request can do without drafts, hence without the draft caches.
      return generates ? resources_.reserve(sequence, most_tokens(sequence))
                       : reserve_everywhere(sequence, start + 1);
    };
    bool reserved = reserve();
    while (!reserved && running_.back() != &sequence) {  // as the latest, it waits
      must_collect_ = !launches_.empty();
      if (must_collect_) return 0;
      preempt_latest();
      reserved = reserve();
    }
    is_short_ |= !reserved;
    if (!reserved) continue;
    ready_.push_back({&sequence, start});
    generating += generates;
    may_draft |= generates && sequence.may_draft();
  }
  has_reserved_ = true;
  return may_draft ? generating : 0;
}

StepPlan Scheduler::schedule(bool drafts) {
  if (!has_reserved_) reserve_rows();
  has_reserved_ = false;
  StepPlan plan;
  if (must_collect_) return plan;
  plan.preempted.swap(preempted_);
  std::int64_t spare = limits_.max_num_tokens - static_cast<std::int64_t>(ready_.size());
  const bool may_admit =
      plan.preempted.empty() && !is_short_ && num_running() < limits_.max_batch_size;
  // One row is kept for the queue, or drafts that fill the budget would lock newcomers out. There
  // is one: the batch is not full, and max_num_tokens >= max_batch_size.
  const std::int64_t kept = may_admit && !waiting_.empty() ? 1 : 0;
  spare -= kept;
  for (const Ready& ready : ready_) {
    const ScheduledRows& item = plan.items.emplace_back(extend(ready, spare, drafts));
    spare -= item.num_rows + item.max_nodes - 1;
  }
  if (kept > 0) admit(plan, spare + kept);
  if (resources_.target().keeps_states()) add_states(plan);
  require(!plan.items.empty() || !has_work() || !launches_.empty(),
          "no progress: nothing could be scheduled");
  return plan;
}

void Scheduler::launched(std::span<const ScheduledRows> items) {
  std::vector<Launched>& launch = launches_.emplace_back();
  for (const ScheduledRows& item : items) {
    const InFlight part{
        .launches = 1,
        .rows = item.num_rows,
        .least = item.samples ? 1 : 0,
        .most = item.samples ? 1 + std::min(item.max_nodes, drafts_.max_depth) : 0,
    };
    launch.push_back({item.sequence, part});
    item.sequence->in_flight += part;
  }
}

std::vector<Sequence*> Scheduler::collected() {
  require(!launches_.empty(), "nothing is in flight");
  for (const Launched& launched : launches_.front()) {
    launched.sequence->in_flight -= launched.part;
  }
  launches_.pop_front();
  const auto ended = std::ranges::stable_partition(
      resting_, [](const Sequence* sequence) { return sequence->in_flight.launches > 0; });
  std::vector<Sequence*> ended_now(ended.begin(), ended.end());
  for (const Sequence* sequence : ended_now) resources_.free(*sequence);
  resting_.erase(ended.begin(), ended.end());
  return ended_now;
}

ScheduledRows Scheduler::extend(const Ready& ready, std::int64_t spare, bool drafts) {
  Sequence& sequence = *ready.sequence;
  const std::int64_t start = ready.start, least = sequence.in_flight.least;
  const std::int64_t total = sequence.size();
  if (start == total + least - 1) {
    std::int64_t nodes =
        drafts ? std::min(drafts_.useful_nodes(sequence.draft_depth(least)), spare) : 0;
    const std::int64_t most = most_tokens(sequence);
    if (nodes > 0) nodes = std::min(nodes, resources_.target_room(sequence) - most);
    if (nodes > 0) {
      lengths_ = drafts_.slots;
      for (std::int64_t& length : lengths_) length += most;
      // Else there is no room for a rollout in some draft cache.
      if (!resources_.reserve(sequence, most + nodes, lengths_)) nodes = 0;
    }
    return {&sequence, start, 1, true, std::max<std::int64_t>(nodes, 0), true};
  }
  const std::int64_t rows = std::min({total - start, spare + 1, room(sequence) - start,
                                      resources_.target().next_border(start) - start});
  require(reserve_everywhere(sequence, start + rows), "a cache refused what it had room for");
  return {&sequence, start, rows, false, 0, start + rows == total};
}

void Scheduler::admit(StepPlan& plan, std::int64_t spare) {
  // Rows that the running requests will soon ask for: the rest of their prompts, and a block each
  // to go on. Without it a newcomer would compute its prompt only to be the next victim.
  const auto pledge = [this](const ScheduledRows& item) {
    const std::int64_t tokens = item.sequence->size() + item.sequence->in_flight.least;
    return resources_.pledge(tokens - item.start - item.num_rows);
  };
  std::int64_t pledged = 0;
  for (const ScheduledRows& item : plan.items) pledged += pledge(item);
  while (!waiting_.empty() && spare > 0 && num_running() < limits_.max_batch_size) {
    Sequence& sequence = *waiting_.front();
    const std::int64_t start = resources_.begin(sequence);
    const bool is_alone = running_.empty() && resting_.empty();
    if (!is_alone && room(sequence) < sequence.size() + pledged) {
      resources_.free(sequence);
      return;
    }
    waiting_.pop_front();
    running_.push_back(&sequence);
    require(reserve_everywhere(sequence, start + 1), "a request does not fit alone");
    const ScheduledRows& item =
        plan.items.emplace_back(extend({&sequence, start}, spare - 1, true));
    ++plan.num_begun;
    spare -= item.num_rows + item.max_nodes;
    pledged += pledge(item);
  }
}

void Scheduler::add_states(StepPlan& plan) {
  const KVCache& target = resources_.target();
  for (const ScheduledRows& item : plan.items) {
    const std::int64_t id = item.sequence->id;
    const bool begins = item.sequence->in_flight.launches == 0;
    const std::int64_t depth = std::min(item.max_nodes, drafts_.max_depth);
    const std::int64_t most =
        item.is_generation ? most_tokens(*item.sequence) + depth : item.start + item.num_rows;
    plan.states.push_back({.slot = target.state(id),
                           .source = begins ? target.source(id) : -1,
                           .snapshot = resources_.keep_target(*item.sequence, item.start, most)});
  }
}

void Scheduler::preempt_latest() {
  Sequence* victim = running_.back();
  running_.pop_back();
  resources_.free(*victim);
  preempted_.push_back(victim);
  waiting_.push_front(victim);
}

std::int64_t Scheduler::most_tokens(const Sequence& sequence) const {
  // One that goes on has yet to emit its last.
  return sequence.size() + std::min(sequence.in_flight.most, sequence.remaining_tokens() - 1);
}

bool Scheduler::reserve_everywhere(const Sequence& sequence, std::int64_t num_tokens) {
  lengths_.assign(sequence.may_draft() ? drafts_.slots.size() : 0, num_tokens);
  return resources_.reserve(sequence, num_tokens, lengths_);
}

std::int64_t Scheduler::room(const Sequence& sequence) const {
  return sequence.may_draft() ? resources_.room(sequence) : resources_.target_room(sequence);
}

}  // namespace trtspec
