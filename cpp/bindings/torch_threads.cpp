// trtspec::_take_threads and _release_threads (contract: trtspec/ops/threads.py).
#include <ATen/Parallel.h>
#include <omp.h>
#include <torch/library.h>
#include <trtspec/team.hpp>

namespace {

void take_threads() { trtspec::take_threads(at::get_num_threads()); }

void release_threads() {
  trtspec::end_team();
  omp_pause_resource_all(omp_pause_soft);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("_take_threads() -> ()", &take_threads);
  m.def("_release_threads() -> ()", &release_threads);
}
