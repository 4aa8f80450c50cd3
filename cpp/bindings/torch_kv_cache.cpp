// KVCacheManager as torch sees it. Sizes that do not fit come to Python as ValueError, everything
// else as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/runtime/host_tensor.hpp>

#include <algorithm>
#include <tuple>
#include <vector>

namespace {

using Ints = std::vector<int64_t>;

struct ManagerHolder : torch::CustomClassHolder {
  ManagerHolder(int64_t num_blocks, int64_t block_size, bool enable_reuse, int64_t lookahead,
                int64_t window)
      : manager(num_blocks, block_size, enable_reuse, lookahead, window) {}

  int64_t num_free_blocks() { return manager.num_free_blocks(); }
  int64_t match(const Ints& tokens) { return manager.match(tokens); }
  // begin and commit also say how many rows are offered after them: a call of its own for that would
  // cost more than they do.
  int64_t begin(int64_t request, const Ints& tokens, int64_t num_cached) {
    manager.begin(request, tokens, num_cached);
    return manager.offered(request);
  }
  int64_t committed(int64_t request) { return manager.committed(request); }
  // Ids, and the committed length of each.
  std::tuple<Ints, Ints> committed_lengths() {
    std::tuple<Ints, Ints> lengths;
    for (const auto& [request, committed] : manager.committed_lengths()) {
      std::get<0>(lengths).push_back(request);
      std::get<1>(lengths).push_back(committed);
    }
    return lengths;
  }
  // int32 [n], a copy.
  at::Tensor block_table(int64_t request) {
    const auto blocks = manager.block_table(request);
    at::Tensor table = trtspec::host_tensor({int64_t(blocks.size())}, at::kInt);
    std::copy(blocks.begin(), blocks.end(), table.mutable_data_ptr<int32_t>());
    return table;
  }
  // int64 [n]
  at::Tensor slots(int64_t request, const Ints& positions) {
    at::Tensor slots = trtspec::host_tensor({int64_t(positions.size())}, at::kLong);
    std::transform(positions.begin(), positions.end(), slots.mutable_data_ptr<int64_t>(),
                   [&](int64_t position) { return manager.slot(request, position); });
    return slots;
  }
  int64_t room(int64_t request) { return manager.room(request); }
  bool reserve(int64_t request, int64_t num_tokens) {
    return manager.reserve(request, num_tokens);
  }
  int64_t commit(int64_t request, const Ints& tokens, int64_t first, int64_t num_committed) {
    manager.commit(request, tokens, first, num_committed);
    return manager.offered(request);
  }
  void free(int64_t request) { manager.free(request); }
  void check_invariants() { manager.check_invariants(); }

  trtspec::KVCacheManager manager;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<ManagerHolder>("KVCacheManager")
      .def(torch::init<int64_t, int64_t, bool, int64_t, int64_t>(), "",
           {torch::arg("num_blocks"), torch::arg("block_size"), torch::arg("enable_reuse"),
            torch::arg("lookahead"), torch::arg("window") = 0})
      .def("num_free_blocks", &ManagerHolder::num_free_blocks)
      .def("match", &ManagerHolder::match)
      .def("begin", &ManagerHolder::begin)
      .def("committed", &ManagerHolder::committed)
      .def("committed_lengths", &ManagerHolder::committed_lengths)
      .def("block_table", &ManagerHolder::block_table)
      .def("slots", &ManagerHolder::slots)
      .def("room", &ManagerHolder::room)
      .def("reserve", &ManagerHolder::reserve)
      .def("commit", &ManagerHolder::commit)
      .def("free", &ManagerHolder::free)
      .def("check_invariants", &ManagerHolder::check_invariants);
}
