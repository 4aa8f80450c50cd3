// ResourceManager and Scheduler as torch sees them: of requests they know the sequences. What a user
// gave that does not fit comes to Python as ValueError, everything else as RuntimeError.
#include <torch/library.h>
#include <trtspec/runtime/commit.hpp>
#include <trtspec/scheduler.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache_holder.hpp"
#include "drafts_holder.hpp"
#include "sequence_holder.hpp"

namespace {

using trtspec::Sequence;
using Ints = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

// The states of a plan's items: int64 [4, B], slots, sources, and snapshots with their rows.
at::Tensor state_table(const std::vector<trtspec::ScheduledState>& states) {
  const auto count = int64_t(states.size());
  at::Tensor table = trtspec::host_tensor({4, count}, at::kLong);
  auto* value = table.mutable_data_ptr<int64_t>();
  for (const auto& [slot, source, snapshot] : states) {
    value[0] = slot;
    value[count] = source;
    value[2 * count] = snapshot.slot;
    value[3 * count] = snapshot.rows;
    ++value;
  }
  return table;
}

std::vector<trtspec::ScheduledState> states_of(const at::Tensor& table) {
  TORCH_CHECK(table.dim() == 2 && table.size(0) == 4 && table.scalar_type() == at::kLong &&
                  table.is_contiguous(),
              "the states of a plan are int64 [4, items]");
  const int64_t count = table.size(1);
  const auto* value = table.const_data_ptr<int64_t>();
  std::vector<trtspec::ScheduledState> states;
  for (int64_t i = 0; i < count; ++i, ++value) {
    states.push_back({int32_t(value[0]),
                      int32_t(value[count]),
                      {.rows = value[3 * count], .slot = int32_t(value[2 * count])}});
  }
  return states;
}

Tensors tensors(const trtspec::TakenNodes& taken) {
  return {trtspec::host_copy(taken.slots), trtspec::host_copy(taken.rows),
          trtspec::host_copy(taken.start)};
}

// Without the tokens.
trtspec::StepResult result_of(Ints start, Ints rows, const c10::List<bool>& failed) {
  trtspec::StepResult result{std::move(start), {}, std::move(rows), {}};
  for (const bool is_failed : failed) {
    result.ends.push_back(is_failed ? trtspec::FinishReason::error : trtspec::FinishReason::none);
  }
  return result;
}

// Where the rows that stay lie among those of a step's call, int64 [n]; see `kept_rows`.
at::Tensor kept_rows(const at::Tensor& plan, Ints start, Ints rows, const c10::List<bool>& failed,
                     int64_t drafts) {
  const trtspec::StepResult result = result_of(std::move(start), std::move(rows), failed);
  return trtspec::host_copy(trtspec::kept_rows(items_of(plan), result, drafts_at(drafts)));
}

struct ResourcesHolder : torch::CustomClassHolder {
  // Addresses of the caches, the target's first; of each draft's, whether its rows can be made of
  // tokens alone.
  ResourcesHolder(const Ints& caches, const Ints& from_tokens)
      : resources(made(caches, from_tokens)), tables(caches.size()) {}

  static trtspec::ResourceManager made(const Ints& caches, const Ints& from_tokens) {
    TORCH_CHECK(caches.size() == from_tokens.size() + 1, "resources: one flag is needed a draft");
    std::vector<trtspec::ResourceManager::Draft> drafts;
    for (std::size_t i = 0; i < from_tokens.size(); ++i) {
      drafts.push_back({cache_at(caches[i + 1]), from_tokens[i] != 0});
    }
    return trtspec::ResourceManager(cache_at(caches.front()), std::move(drafts));
  }

  // One that no scheduler knows: begun, and freed, by hand.
  int64_t begin(int64_t sequence) { return resources.begin(sequence_at(sequence)); }
  void free(int64_t sequence) {
    resources.free(sequence_at(sequence));
    forget(sequence_at(sequence));
  }
  // Its tables, once it has ended.
  void forget(const Sequence& sequence) {
    for (auto& cache : tables) cache.erase(sequence.id);
  }

  bool reserve(int64_t sequence, int64_t target_tokens, const Ints& draft_tokens) {
    return as_value_error(
        [&] { return resources.reserve(sequence_at(sequence), target_tokens, draft_tokens); });
  }

  // A result, a value an item of the plan: `start`, `tokens` and `rows` as those of a StepResult.
  // Returns where accepted rows lie, and where they are to go, int64 [n] each; nothing where all are
  // at their places.
  Tensors extend(const at::Tensor& plan, Ints start, Ints tokens, Ints rows) {
    const std::vector<trtspec::ScheduledRows> items = items_of(plan);
    TORCH_CHECK(
        !start.empty() && start.back() == int64_t(tokens.size()) && tokens.size() == rows.size(),
        "extend: ", tokens.size(), " tokens of ", rows.size(), " rows do not fit a result");
    trtspec::StepResult result{std::move(start), std::move(tokens), std::move(rows), {}};
    result.ends.resize(result.start.size() - 1);
    trtspec::extend(items, result);
    const trtspec::Moves moves = trtspec::compaction(items, result, resources.target());
    if (moves.from.empty()) return {};
    return {trtspec::host_copy(moves.from), trtspec::host_copy(moves.to)};
  }

  // The same, and of each item its state (see Planned) and the nodes of its draft. Returns what
  // StateMoves holds: of nodes slots, rows and starts, of snapshots from where and to where.
  static Tensors state_moves(const at::Tensor& plan, const at::Tensor& states, Ints start,
                             Ints rows, const Ints& nodes) {
    trtspec::StepResult result{std::move(start), {}, std::move(rows), {}};
    result.ends.resize(result.start.size() - 1);
    const trtspec::StateMoves moves =
        trtspec::state_moves(items_of(plan), states_of(states), result, nodes);
    Tensors made = tensors(moves.before);
    made.push_back(trtspec::host_copy(moves.snapshots.from));
    made.push_back(trtspec::host_copy(moves.snapshots.to));
    for (at::Tensor& tensor : tensors(moves.behind)) made.push_back(std::move(tensor));
    return made;
  }

  // The same of extend, and of each item whether it failed; its rows in the drafts' caches, one item behind
  // the other.
  void commit(const at::Tensor& plan, Ints start, const c10::List<bool>& failed,
              const Ints& drafted) {
    trtspec::commit(items_of(plan), result_of(std::move(start), {}, failed), drafted, resources);
  }

  int64_t room(int64_t sequence) { return resources.room(sequence_at(sequence)); }
  double usage() { return resources.usage(); }
  void check_invariants() { resources.check_invariants(); }

  // The same tensor for as long as the blocks are the same: Python has it already then.
  at::Tensor table(std::size_t cache, int64_t id) {
    const std::span<const int32_t> blocks = resources.cache(cache).block_table(id);
    at::Tensor& known = tables[cache][id];
    if (!known.defined() || known.numel() != int64_t(blocks.size()) ||
        !std::equal(blocks.begin(), blocks.end(), known.const_data_ptr<int32_t>())) {
      known = table_of(blocks);
    }
    return known;
  }

  trtspec::ResourceManager resources;
  std::vector<std::unordered_map<int64_t, at::Tensor>> tables;  // by cache, by request
};

using Resources = c10::intrusive_ptr<ResourcesHolder>;

// What a step feeds: the ids of its items, and their table (see plan_table); how many items begin, ids
// of the preempted requests, and how many run; of each draft cache in turn its committed lengths,
// and how many tokens are absent to it; the block tables of the target's cache and of the drafts' in
// the same order; and the states of the items (see state_table), of a target that keeps such.
using Planned = std::tuple<Ints, at::Tensor, int64_t, Ints, int64_t, Ints, Ints, Tensors,
                           std::optional<at::Tensor>>;

struct SchedulerHolder : torch::CustomClassHolder {
  SchedulerHolder(const Resources& resources, int64_t max_batch_size, int64_t max_num_tokens,
                  int64_t max_seq_len, int64_t max_nodes, int64_t max_depth, const Ints& slots)
      : owner(resources), scheduler(as_value_error([&] {
          return trtspec::Scheduler(resources->resources,
                                    {max_batch_size, max_num_tokens, max_seq_len},
                                    {max_nodes, max_depth, slots});
        })) {}

  void check_fits(int64_t sequence) {
    as_value_error([&] { scheduler.check_fits(sequence_at(sequence)); });
  }

  void add(int64_t sequence) {
    as_value_error([&] { scheduler.add(sequence_at(sequence)); });
  }

  bool finish(int64_t address) {
    Sequence& sequence = sequence_at(address);
    const bool ran = scheduler.finish(sequence);
    if (sequence.in_flight.launches == 0) owner->forget(sequence);
    return ran;
  }

  Ints waiting() {
    Ints ids;
    for (const Sequence* sequence : scheduler.waiting()) ids.push_back(sequence->id);
    return ids;
  }

  void reorder(const Ints& sequences) {
    std::vector<Sequence*> waiting;
    for (const int64_t sequence : sequences) waiting.push_back(&sequence_at(sequence));
    as_value_error([&] { scheduler.reorder(waiting); });
  }

  int64_t reserve_rows() { return scheduler.reserve_rows(); }

  Planned schedule(bool drafts) {
    const trtspec::StepPlan plan = scheduler.schedule(drafts);
    Planned planned;
    auto& [ids, table, begun, preempted, running, drafted, absent, tables, states] = planned;
    for (const trtspec::ScheduledRows& item : plan.items) ids.push_back(item.sequence->id);
    table = plan_table(plan.items);
    begun = plan.num_begun;
    for (const Sequence* sequence : plan.preempted) preempted.push_back(sequence->id);
    running = scheduler.num_running();
    for (std::size_t cache = 0; cache <= owner->resources.num_drafts(); ++cache) {
      for (const int64_t id : ids) {
        if (cache > 0) {
          absent.push_back(owner->resources.cache(cache).absent(id));
          drafted.push_back(owner->resources.cache(cache).committed(id) + absent.back());
        }
        tables.push_back(owner->table(cache, id));
      }
    }
    if (owner->resources.target().keeps_states()) states = state_table(plan.states);
    return planned;
  }

  void launched(const at::Tensor& plan) { scheduler.launched(items_of(plan)); }
  void collected() {
    for (const Sequence* sequence : scheduler.collected()) owner->forget(*sequence);
  }

  Resources owner;
  trtspec::Scheduler scheduler;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<ResourcesHolder>("ResourceManager")
      .def(torch::init<Ints, Ints>())
      .def("begin", &ResourcesHolder::begin)
      .def("free", &ResourcesHolder::free)
      .def("reserve", &ResourcesHolder::reserve)
      .def("extend", &ResourcesHolder::extend)
      .def_static("state_moves", &ResourcesHolder::state_moves)
      .def_static("kept_rows", &kept_rows)
      .def("commit", &ResourcesHolder::commit)
      .def("room", &ResourcesHolder::room)
      .def("usage", &ResourcesHolder::usage)
      .def("check_invariants", &ResourcesHolder::check_invariants);
  m.class_<SchedulerHolder>("Scheduler")
      .def(torch::init<Resources, int64_t, int64_t, int64_t, int64_t, int64_t, Ints>())
      .def("check_fits", &SchedulerHolder::check_fits)
      .def("add", &SchedulerHolder::add)
      .def("finish", &SchedulerHolder::finish)
      .def("waiting", &SchedulerHolder::waiting)
      .def("reorder", &SchedulerHolder::reorder)
      .def("reserve_rows", &SchedulerHolder::reserve_rows)
      .def("schedule", &SchedulerHolder::schedule)
      .def("launched", &SchedulerHolder::launched)
      .def("collected", &SchedulerHolder::collected);
}
