// trtspec::_available_memory, _usable_cpus and _default_threads (contract: trtspec/ops/host.py).
#include <torch/library.h>
#include <trtspec/host.hpp>

namespace {

int64_t available_memory(const std::string& root) { return trtspec::available_memory(root); }

int64_t usable_cpus(const std::string& root) { return trtspec::usable_cpus(root); }

int64_t default_threads(int64_t threads) {
  return trtspec::default_threads(static_cast<int>(threads));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("_available_memory(str root) -> int", &available_memory);
  m.def("_usable_cpus(str root) -> int", &usable_cpus);
  m.def("_default_threads(int threads) -> int", &default_threads);
}
