#include <trtspec/error.hpp>
#include <trtspec/runtime/scheduler.hpp>

#include <algorithm>
#include <sstream>
#include <stdexcept>

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

Scheduler::Scheduler(ResourceManager& resources, const SchedulerLimits& limits,
                     const DrafterNeeds& needs)
    : resources_(resources), limits_(limits), needs_(needs) {
  needs.check();
  if (limits.max_batch_size < 1) {
    throw Error(text("max_batch_size=", limits.max_batch_size, " must be at least 1"));
  }
  if (limits.max_num_tokens < limits.max_batch_size) {
    throw Error(text("max_num_tokens=", limits.max_num_tokens,
                     " must be at least max_batch_size=", limits.max_batch_size,
                     ", so that every request of a full batch gets a row; raise the former or "
                     "lower the latter"));
  }
  if (needs.has_draft_cache != resources.has_draft()) {
    throw Error(text("the drafter ", needs.has_draft_cache ? "keeps" : "does not keep",
                     " K/V of its own, but a draft KV cache is ",
                     resources.has_draft() ? "present" : "missing"));
  }
}

void Scheduler::check_fits(const Request& request) const {
  const std::int64_t total = request.num_prompt_tokens + request.max_output_tokens;
  const std::string parts = text(request.num_prompt_tokens, " prompt tokens + ",
                                 request.max_output_tokens, " output tokens");
  if (request.max_output_tokens < 1 || total > limits_.max_seq_len) {
    throw Error(text(parts, " do not fit max_seq_len=", limits_.max_seq_len,
                     ", or leave no output; shorten the prompt or lower max_tokens"));
  }
  const auto check = [&](const char* name, const KVCache& cache, std::int64_t extra,
                         const char* noun) {
    const std::int64_t held = cache.rows_held(total, limits_.max_num_tokens) + extra;
    if (held <= cache.capacity()) return;
    const std::string at_once = held == total + extra ? "" : text(", ", held, " of them at once");
    throw Error(text(parts, " + ", extra, " ", noun, " = ", total + extra, " tokens", at_once,
                     ", but the ", name, " KV cache holds ", cache.capacity(), " (", cache.num_blocks(),
                     " blocks of ", cache.block_size(),
                     "); lower max_tokens, shorten the prompt or enlarge the KV cache"));
  };
  check("target", resources_.target(), needs_.max_nodes, "draft nodes");
  if (resources_.has_draft()) {
    check("draft", resources_.draft(), needs_.draft_slots, "draft slots");
  }
}

void Scheduler::add(Request request) {
  require(!requests_.contains(request.id), "a request with this id was added already");
  check_fits(request);
  const std::int64_t id = request.id;
  auto& owned = requests_[id] = std::make_unique<Request>(std::move(request));
  waiting_.push_back(owned.get());
}

bool Scheduler::abort(std::int64_t request_id) {
  if (!requests_.contains(request_id)) return false;
  finish(request_id);
  return true;
}

void Scheduler::finish(std::int64_t request_id) {
  const auto entry = requests_.find(request_id);
  require(entry != requests_.end(), "an unknown request cannot finish");
  Request* request = entry->second.get();
  const auto running = std::find(running_.begin(), running_.end(), request);
  if (running != running_.end()) {
    running_.erase(running);
    resources_.free(*request);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request));
  }
  requests_.erase(entry);
}

ScheduledBatch Scheduler::schedule() {
  ScheduledBatch batch;
  const auto ready = reserve_one_row_each(batch.preempted);
  std::int64_t spare = limits_.max_num_tokens - static_cast<std::int64_t>(ready.size());
  const bool may_admit = batch.preempted.empty() && ready.size() == running_.size() &&
                         num_running() < limits_.max_batch_size;
  // One row is kept for the queue, or drafts that fill the budget would lock newcomers out. There
  // is one: the batch is not full, and max_num_tokens >= max_batch_size.
  const std::int64_t kept = may_admit && !waiting_.empty() ? 1 : 0;
  spare -= kept;
  for (const auto& [request, start] : ready) {
    batch.items.push_back(extend(*request, start, spare));
    spare -= batch.items.back().num_rows + batch.items.back().max_nodes - 1;
  }
  if (kept > 0) admit(batch.items, spare + kept);
  require(!batch.items.empty() || requests_.empty(), "no progress: nothing could be scheduled");
  return batch;
}

std::vector<std::pair<Request*, std::int64_t>> Scheduler::reserve_one_row_each(
    std::vector<Request*>& preempted) {
  std::vector<std::pair<Request*, std::int64_t>> ready;
  for (std::size_t index = 0; index < running_.size(); ++index) {
    Request* request = running_[index];
    const std::int64_t start = resources_.target_committed(*request);
    // A generating request can do without drafts, hence without the draft cache.
    const std::int64_t draft = start == request->size() - 1 ? 0 : start + 1;
    bool reserved = resources_.reserve(*request, start + 1, draft);
    while (!reserved && running_.back() != request) {  // as the latest, it waits
      preempted.push_back(preempt_latest());
      reserved = resources_.reserve(*request, start + 1, draft);
    }
    if (reserved) ready.emplace_back(request, start);
  }
  return ready;
}

ScheduledRequest Scheduler::extend(Request& request, std::int64_t start, std::int64_t spare) {
  const std::int64_t total = request.size();
  if (start == total - 1) {
    std::int64_t nodes = std::min(needs_.useful_nodes(request.remaining_tokens()), spare);
    if (nodes > 0) nodes = std::min(nodes, resources_.target_room(request) - total);
    if (nodes > 0 && !resources_.reserve(request, total + nodes, total + needs_.draft_slots)) {
      nodes = 0;  // no room for a rollout in the draft cache
    }
    return {&request, start, 1, true, nodes, true};
  }
  const std::int64_t rows =
      std::min({total - start, spare + 1, resources_.room(request) - start});
  require(resources_.reserve(request, start + rows, start + rows),
          "a cache refused what it had room for");
  return {&request, start, rows, false, 0, start + rows == total};
}

void Scheduler::admit(std::vector<ScheduledRequest>& items, std::int64_t spare) {
  // Rows that the running requests will soon ask for: the rest of their prompts, and a block each
  // to go on. Without it a newcomer would compute its prompt only to be the next victim.
  const auto pledge = [this](const ScheduledRequest& item) {
    return resources_.pledge(item.request->size() - item.start - item.num_rows);
  };
  std::int64_t pledged = 0;
  for (const ScheduledRequest& item : items) pledged += pledge(item);
  while (!waiting_.empty() && spare > 0 && num_running() < limits_.max_batch_size) {
    Request* request = waiting_.front();
    const std::int64_t start = resources_.begin(*request);
    if (!running_.empty() && resources_.room(*request) < request->size() + pledged) {
      resources_.free(*request);
      return;
    }
    waiting_.pop_front();
    running_.push_back(request);
    require(resources_.reserve(*request, start + 1, start + 1), "a request does not fit alone");
    items.push_back(extend(*request, start, spare - 1));
    spare -= items.back().num_rows + items.back().max_nodes;
    pledged += pledge(items.back());
  }
}

Request* Scheduler::preempt_latest() {
  Request* victim = running_.back();
  running_.pop_back();
  resources_.free(*victim);
  victim->draft = TokenTree();
  waiting_.push_front(victim);
  return victim;
}

}  // namespace trtspec
