// KVCacheManager and SlotKVCacheManager as torch sees them: one class, two ways to make one. Sizes
// that do not fit come to Python as ValueError, everything else as RuntimeError.
#include <torch/library.h>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/slot_kv_cache_manager.hpp>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "cache_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

struct CacheHolder : torch::CustomClassHolder {
  explicit CacheHolder(SharedCache made) : cache(std::move(made)) {}

  // The last three are the StateSizes.
  static c10::intrusive_ptr<CacheHolder> paged(int64_t num_blocks, int64_t block_size,
                                               bool enable_reuse, int64_t lookahead, int64_t window,
                                               int64_t sinks, int64_t num_states,
                                               int64_t num_snapshots, int64_t blocks_apart) {
    return as_value_error([&] {
      return c10::make_intrusive<CacheHolder>(std::make_shared<trtspec::KVCacheManager>(
          num_blocks, block_size, enable_reuse, lookahead, window, sinks,
          trtspec::StateSizes{num_states, num_snapshots, blocks_apart}));
    });
  }
  static c10::intrusive_ptr<CacheHolder> of_slots(int64_t num_slots, int64_t length) {
    return as_value_error([&] {
      return c10::make_intrusive<CacheHolder>(
          std::make_shared<trtspec::SlotKVCacheManager>(num_slots, length));
    });
  }

  // Of the cache, for other calls: see cache_at.
  int64_t address() { return reinterpret_cast<int64_t>(&cache); }
  int64_t num_free_blocks() { return cache->num_free_blocks(); }
  int64_t rows_held(int64_t total, int64_t step) { return cache->rows_held(total, step); }
  int64_t match(const Ints& tokens, int64_t adapter) { return cache->match(tokens, adapter); }
  void begin(int64_t request, const Ints& tokens, int64_t num_cached, int64_t adapter) {
    cache->begin(request, tokens, num_cached, adapter);
  }
  void begin_behind(int64_t request, const Ints& tokens, int64_t end, int64_t adapter) {
    cache->begin_behind(request, tokens, end, adapter);
  }
  int64_t absent(int64_t request) { return cache->absent(request); }
  int64_t committed(int64_t request) { return cache->committed(request); }
  // Ids, and the committed length of each.
  std::tuple<Ints, Ints> committed_lengths() {
    std::tuple<Ints, Ints> lengths;
    for (const auto& [request, committed] : cache->committed_lengths()) {
      std::get<0>(lengths).push_back(request);
      std::get<1>(lengths).push_back(committed);
    }
    return lengths;
  }
  at::Tensor block_table(int64_t request) { return table_of(cache->block_table(request)); }
  // int64 [n]
  at::Tensor slots(int64_t request, const Ints& positions) {
    at::Tensor slots = trtspec::host_tensor({int64_t(positions.size())}, at::kLong);
    std::transform(positions.begin(), positions.end(), slots.mutable_data_ptr<int64_t>(),
                   [&](int64_t position) { return cache->slot(request, position); });
    return slots;
  }
  int64_t room(int64_t request) { return cache->room(request); }
  bool reserve(int64_t request, int64_t num_tokens) { return cache->reserve(request, num_tokens); }
  void commit(int64_t request, const Ints& tokens, int64_t num_committed) {
    cache->commit(request, tokens, 0, num_committed, false);
  }
  void free(int64_t request) { cache->free(request); }
  void check_invariants() { cache->check_invariants(); }
  int64_t state(int64_t request) { return cache->state(request); }
  int64_t source(int64_t request) { return cache->source(request); }
  // Slot and rows.
  std::tuple<int64_t, int64_t> keep(int64_t request, int64_t from, int64_t to) {
    const trtspec::Snapshot kept = cache->keep(request, from, to);
    return {kept.slot, kept.rows};
  }

  SharedCache cache;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<CacheHolder>("KVCache")
      .def_static("paged", &CacheHolder::paged)
      .def_static("of_slots", &CacheHolder::of_slots)
      .def("address", &CacheHolder::address)
      .def("num_free_blocks", &CacheHolder::num_free_blocks)
      .def("rows_held", &CacheHolder::rows_held)
      .def("match", &CacheHolder::match)
      .def("begin", &CacheHolder::begin)
      .def("begin_behind", &CacheHolder::begin_behind)
      .def("absent", &CacheHolder::absent)
      .def("committed", &CacheHolder::committed)
      .def("committed_lengths", &CacheHolder::committed_lengths)
      .def("block_table", &CacheHolder::block_table)
      .def("slots", &CacheHolder::slots)
      .def("room", &CacheHolder::room)
      .def("reserve", &CacheHolder::reserve)
      .def("commit", &CacheHolder::commit)
      .def("free", &CacheHolder::free)
      .def("check_invariants", &CacheHolder::check_invariants)
      .def("state", &CacheHolder::state)
      .def("source", &CacheHolder::source)
      .def("keep", &CacheHolder::keep);
}
