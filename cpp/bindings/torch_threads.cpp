// trtspec::_release_threads (contract: trtspec/ops/threads.py).
#include <omp.h>
#include <torch/library.h>

#include "../ops/team.hpp"

namespace {

void release_threads() {
  trtspec::end_team();
  omp_pause_resource_all(omp_pause_soft);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) { m.def("_release_threads() -> ()", &release_threads); }
