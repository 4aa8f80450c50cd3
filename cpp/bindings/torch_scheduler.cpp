// ResourceManager and Scheduler as torch sees them: of requests they know ids and tokens. What a
// user gave that does not fit comes to Python as ValueError, everything else as RuntimeError.
#include <torch/library.h>
#include <trtspec/scheduler.hpp>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache_holder.hpp"

namespace {

using trtspec::Sequence;
using Ints = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

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

  Sequence& at(int64_t id) {
    const auto found = sequences.find(id);
    if (found == sequences.end()) {
      throw std::logic_error("request " + std::to_string(id) + " has not begun");
    }
    return found->second;
  }

  Sequence& take_in(int64_t id, const Ints& tokens, int64_t num_prompt_tokens,
                    int64_t max_output_tokens) {
    const auto [entry, is_new] =
        sequences.try_emplace(id, Sequence{id, tokens, num_prompt_tokens, max_output_tokens});
    if (!is_new) throw std::logic_error("request " + std::to_string(id) + " was added already");
    return entry->second;
  }

  void forget(int64_t id) {
    sequences.erase(id);
    for (auto& cache : tables) cache.erase(id);
  }

  // One that no scheduler knows: begun, and freed, by hand.
  int64_t begin(int64_t id, const Ints& tokens) {
    return resources.begin(take_in(id, tokens, int64_t(tokens.size()), 0));
  }
  void free(int64_t id) {
    resources.free(at(id));
    forget(id);
  }

  bool reserve(int64_t id, int64_t target_tokens, const Ints& draft_tokens) {
    return as_value_error(
        [&] { return resources.reserve(at(id), target_tokens, draft_tokens); });
  }

  // Of each request: how many of `tokens`, which its text grows by, are its own; its rows in the
  // target's cache, and in the drafts', one request behind the other.
  void commit(const Ints& ids, const Ints& counts, const Ints& tokens,
              const Ints& target_committed, const Ints& draft_committed) {
    const std::size_t size = ids.size(), drafts = resources.num_drafts();
    TORCH_CHECK_VALUE(counts.size() == size && target_committed.size() == size &&
                          draft_committed.size() == size * drafts,
                      "commit: one length of each of ", drafts, " draft KV caches is needed for ",
                      size, " requests");
    auto token = tokens.begin();
    auto drafted = draft_committed.begin();
    for (std::size_t i = 0; i < size; ++i) {
      Sequence& sequence = at(ids[i]);
      TORCH_CHECK(counts[i] <= tokens.end() - token, "commit: more tokens counted than given");
      sequence.tokens.insert(sequence.tokens.end(), token, token + counts[i]);
      token += counts[i];
      resources.commit(sequence, target_committed[i], {drafted, drafted + std::ptrdiff_t(drafts)});
      drafted += std::ptrdiff_t(drafts);
    }
  }

  // Where accepted rows lie in the target's cache, and where they are to go, int64 [n] each: of
  // each request the first position of its step, and how many of `rows` are its own.
  std::tuple<at::Tensor, at::Tensor> moves(const Ints& ids, const Ints& starts, const Ints& counts,
                                           const Ints& rows) {
    TORCH_CHECK(starts.size() == ids.size() && counts.size() == ids.size(),
                "moves: one of each is needed for ", ids.size(), " requests");
    Ints from, to;
    auto row = rows.begin();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      TORCH_CHECK(counts[i] <= rows.end() - row, "moves: more rows counted than given");
      for (int64_t place = 0; place < counts[i]; ++place, ++row) {
        if (*row == place) continue;
        from.push_back(resources.target().slot(ids[i], starts[i] + *row));
        to.push_back(resources.target().slot(ids[i], starts[i] + place));
      }
    }
    return {trtspec::host_copy(from), trtspec::host_copy(to)};
  }

  int64_t room(int64_t id) { return resources.room(at(id)); }
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
  std::unordered_map<int64_t, Sequence> sequences;
  std::vector<std::unordered_map<int64_t, at::Tensor>> tables;  // by cache, by request
};

using Resources = c10::intrusive_ptr<ResourcesHolder>;

// What a step feeds, a value an item: ids, starts, numbers of rows, whether it is generation, most
// nodes, whether it samples. Behind them: how many items begin, ids of the preempted requests, and
// how many run; of each draft cache in turn its committed lengths, and how many tokens are absent to
// it; and the block tables of the target's cache and of the drafts' in the same order.
using Planned = std::tuple<Ints, Ints, Ints, std::vector<bool>, Ints, std::vector<bool>, int64_t,
                           Ints, int64_t, Ints, Ints, Tensors>;

struct SchedulerHolder : torch::CustomClassHolder {
  SchedulerHolder(const Resources& resources, int64_t max_batch_size, int64_t max_num_tokens,
                  int64_t max_seq_len, int64_t max_nodes, int64_t max_depth, const Ints& slots)
      : owner(resources), scheduler(as_value_error([&] {
          return trtspec::Scheduler(resources->resources,
                                    {max_batch_size, max_num_tokens, max_seq_len},
                                    {max_nodes, max_depth, slots});
        })) {}

  void check_fits(int64_t num_prompt_tokens, int64_t max_output_tokens) {
    as_value_error([&] { scheduler.check_fits({0, {}, num_prompt_tokens, max_output_tokens}); });
  }

  void add(int64_t id, const Ints& tokens, int64_t num_prompt_tokens, int64_t max_output_tokens) {
    check_fits(num_prompt_tokens, max_output_tokens);
    scheduler.add(owner->take_in(id, tokens, num_prompt_tokens, max_output_tokens));
  }

  bool finish(int64_t id) {
    const bool ran = scheduler.finish(owner->at(id));
    owner->forget(id);
    return ran;
  }

  Ints waiting() {
    Ints ids;
    for (const Sequence* sequence : scheduler.waiting()) ids.push_back(sequence->id);
    return ids;
  }

  void reorder(const Ints& ids) {
    std::vector<Sequence*> waiting;
    for (const int64_t id : ids) waiting.push_back(&owner->at(id));
    as_value_error([&] { scheduler.reorder(waiting); });
  }

  int64_t reserve_rows() { return scheduler.reserve_rows(); }

  Planned schedule(bool drafts) {
    const trtspec::StepPlan plan = scheduler.schedule(drafts);
    Planned planned;
    auto& [ids, starts, rows, generates, nodes, samples, begun, preempted, running, drafted, absent,
           tables] = planned;
    for (const trtspec::ScheduledRows& item : plan.items) {
      ids.push_back(item.sequence->id);
      starts.push_back(item.start);
      rows.push_back(item.num_rows);
      generates.push_back(item.is_generation);
      nodes.push_back(item.max_nodes);
      samples.push_back(item.samples);
    }
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
    return planned;
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
      .def("commit", &ResourcesHolder::commit)
      .def("moves", &ResourcesHolder::moves)
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
      .def("schedule", &SchedulerHolder::schedule);
}
