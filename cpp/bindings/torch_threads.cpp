// trtspec::_take_threads (contract: trtspec/ops/threads.py).
#include <ATen/Parallel.h>
#include <torch/library.h>
#include <trtspec/team.hpp>

namespace {

void take_threads() { trtspec::take_threads(at::get_num_threads()); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("_take_threads() -> ()", &take_threads);
}
