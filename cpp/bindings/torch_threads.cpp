// trtspec::_take_threads and _copy_to_nodes (contract: trtspec/ops/threads.py).
#include <ATen/Parallel.h>
#include <torch/library.h>
#include <trtspec/memory_nodes.hpp>
#include <trtspec/team.hpp>

#include <algorithm>
#include <vector>

namespace {

void take_threads(int64_t ranks) {
  trtspec::take_threads(std::max(1, at::get_num_threads() / int(ranks)));
}

void copy_to_nodes(const at::TensorList& to, const at::TensorList& from) {
  TORCH_CHECK(to.size() == from.size(), "_copy_to_nodes: ", to.size(), " tensors to write to, ",
              from.size(), " to read");
  std::vector<trtspec::Copy> copies;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const at::Tensor &target = to[i], &source = from[i];
    const auto bytes = static_cast<std::int64_t>(source.nbytes());
    TORCH_CHECK(static_cast<std::int64_t>(target.nbytes()) == bytes, "_copy_to_nodes: tensor ", i,
                " has ", bytes, " bytes, what it is copied to ", target.nbytes());
    TORCH_CHECK(
        target.is_cpu() && source.is_cpu() && target.is_contiguous() && source.is_contiguous(),
        "_copy_to_nodes: tensor ", i, " is not contiguous in the memory of the CPU");
    copies.push_back({target.mutable_data_ptr(), source.const_data_ptr(), bytes});
  }
  trtspec::copy_to_nodes(copies, at::get_num_threads());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("_take_threads(int ranks=1) -> ()", &take_threads);
  m.def("_copy_to_nodes(Tensor(a!)[] to, Tensor[] source) -> ()", &copy_to_nodes);
}
