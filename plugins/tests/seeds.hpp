// A test of kernels under several orders of their threads.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <emulator.hpp>

#include "check.hpp"

// Calls test(seed) under each of a few seeds of the emulator, and says which ones failed; or under
// the one that TRTSPEC_EMULATOR_SEED names. The address sanitizer, which makes all slow, sees one.
template <class Test>
void for_seeds(const Test& test) {
#if defined(__SANITIZE_ADDRESS__)
  unsigned first = 0, last = 0;
#else
  unsigned first = 0, last = 2;
#endif
  if (const char* const given = std::getenv("TRTSPEC_EMULATOR_SEED")) {
    first = last = static_cast<unsigned>(std::strtoul(given, nullptr, 10));
  }
  for (unsigned seed = first; seed <= last; ++seed) {
    const int before = failed_checks();
    emulation::set_seed(seed);
    test(seed);
    if (failed_checks() != before) std::printf("failed under TRTSPEC_EMULATOR_SEED=%u\n", seed);
  }
}
