// The namespace of the ops. The ops themselves are in the other files of this folder
// (TORCH_LIBRARY_FRAGMENT).
#include <torch/library.h>
#include <trtspec/isa.hpp>

namespace {

std::string get_isa() { return trtspec::isa_name(trtspec::active_isa()); }

std::string set_isa(std::string name) {
  trtspec::Isa isa;
  TORCH_CHECK(trtspec::isa_named(name.c_str(), isa),
              "instruction set must be generic, avx2, avx_vnni, avx512, "
              "avx512_bf16 or amx, got ",
              name);
  return trtspec::isa_name(trtspec::set_isa(isa));
}

}  // namespace

TORCH_LIBRARY(trtspec, m) {
  // The instruction set in use; setting one returns the one before (and never goes beyond the
  // processor's). For tests.
  m.def("_get_isa() -> str", &get_isa);
  m.def("_set_isa(str name) -> str", &set_isa);
}
