// The namespace of the ops. The ops themselves are in the other files of this folder
// (TORCH_LIBRARY_FRAGMENT).
#include <torch/library.h>
#include <trtspec/isa.hpp>

namespace {

std::string get_isa() { return trtspec::isa_name(trtspec::active_isa()); }

std::string set_isa(std::string name) {
  using trtspec::Isa;
  TORCH_CHECK(name == "generic" || name == "avx2" || name == "avx512",
              "instruction set must be generic, avx2 or avx512, got ", name);
  const Isa isa = name == "avx512" ? Isa::avx512 : name == "avx2" ? Isa::avx2 : Isa::generic;
  return trtspec::isa_name(trtspec::set_isa(isa));
}

}  // namespace

TORCH_LIBRARY(trtspec, m) {
  // The instruction set in use; setting one returns the one before (and never goes beyond the
  // processor's). For tests.
  m.def("_get_isa() -> str", &get_isa);
  m.def("_set_isa(str name) -> str", &set_isa);
}
