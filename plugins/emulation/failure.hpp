// How the emulator tells of a kernel that no GPU would run as it was meant: the program ends.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace emulation {

// As printf, behind "emulator: ".
template <class... Values>
[[noreturn]] void fail(const char* what, Values... values) {
  std::fprintf(stderr, "emulator: ");
  if constexpr (sizeof...(values) == 0) {
    std::fputs(what, stderr);
  } else {
    std::fprintf(stderr, what, values...);
  }
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace emulation
