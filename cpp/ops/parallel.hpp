// Threads for kernels: as many as torch's setting says, which is OpenMP's.
#pragma once
#include <trtspec/team.hpp>

#include <cstdint>

#include "isa.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Threads worth using for `work` units when one thread should have at least `grain` of them:
// 1 or all. (Nothing between: a team of another size is another team.)
inline int threads_for(double work, double grain) {
  const int all = max_threads();
  return all > 1 && work >= 2 * grain ? all : 1;
}

// body(i, thread) for every i in [0, n), in any order; thread < threads. Threads have a share each,
// and take from others' when theirs is done, so work of unequal size balances.
template <class Body>
inline void parallel_for(std::int64_t n, int threads, const Body& body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  run_tasks(
      n, threads,
      [](const void* shared, std::int64_t i, int thread) {
        (*static_cast<const Body*>(shared))(i, thread);
      },
      &body);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
