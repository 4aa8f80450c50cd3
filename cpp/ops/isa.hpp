// How a kernel is compiled for several instruction sets and chosen at run time.
//
//   cpp/ops/foo_kernel.hpp   #include "isa.hpp"
//                            namespace trtspec {
//                            TRTSPEC_DECLARE_KERNEL(void, foo_kernel, (const float* x, int n))
//                            }
//   cpp/ops/foo_kernel.cpp   compiled once per instruction set (CMake takes every *_kernel.cpp):
//                            #include "foo_kernel.hpp"
//                            #include "simd.hpp"
//                            namespace trtspec::TRTSPEC_ISA_NS {
//                            namespace { helpers }
//                            void foo_kernel(const float* x, int n) { ... }
//                            }
//   cpp/ops/foo.cpp          compiled once: checks, scratch memory, then
//                            TRTSPEC_DISPATCH(foo_kernel, x, n);
//
// (The sets between and beyond, avx_vnni, avx512_bf16 and amx, add instructions of use to products of
// weights and to attention: see the sources named *_vnni.cpp, *_dot.cpp and *_amx.cpp. All other
// kernels run as avx2 and as avx512 there.)
//
// TRTSPEC_ISA_NS is generic, avx2 or avx512 in a kernel source. Everything that a kernel source
// defines must lie in that namespace (best: in an unnamed namespace inside it), and it must not
// instantiate inline functions or templates of the standard library (std::vector, std::max, ...):
// the linker keeps only one copy of those, and the copy with AVX-512 instructions could end up in
// code that an older processor runs.
#pragma once
#include <trtspec/isa.hpp>

#ifndef TRTSPEC_ISA_NS
#define TRTSPEC_ISA_NS base
#endif

#if defined(__x86_64__)
#define TRTSPEC_DECLARE_KERNEL(result, name, parameters) \
  namespace generic {                                    \
  result name parameters;                                \
  }                                                      \
  namespace avx2 {                                       \
  result name parameters;                                \
  }                                                      \
  namespace avx512 {                                     \
  result name parameters;                                \
  }
#define TRTSPEC_DISPATCH(name, ...)                                                         \
  (::trtspec::active_isa() >= ::trtspec::Isa::avx512 ? ::trtspec::avx512::name(__VA_ARGS__) \
   : ::trtspec::active_isa() >= ::trtspec::Isa::avx2 ? ::trtspec::avx2::name(__VA_ARGS__)   \
                                                     : ::trtspec::generic::name(__VA_ARGS__))
#else
#define TRTSPEC_DECLARE_KERNEL(result, name, parameters) \
  namespace generic {                                    \
  result name parameters;                                \
  }
#define TRTSPEC_DISPATCH(name, ...) (::trtspec::generic::name(__VA_ARGS__))
#endif
