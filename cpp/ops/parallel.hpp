// Threads for kernels. torch's thread setting applies: both use OpenMP's.
#pragma once
#include <omp.h>

#include <cstdint>

#include "isa.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Threads worth using for `work` units when one thread should have at least `grain` of them:
// 1 or all. (Nothing between: OpenMP ends and starts threads when the size of its team changes.)
inline int threads_for(double work, double grain) {
  const int all = omp_get_max_threads();
  return all > 1 && work >= 2 * grain && !omp_in_parallel() ? all : 1;
}

// body(i, thread) for every i in [0, n), in any order; thread < threads. Indices are handed out
// one at a time, so work of unequal size balances.
template <class Body>
inline void parallel_for(std::int64_t n, int threads, const Body& body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t i = 0; i < n; ++i) body(i, omp_get_thread_num());
}

}  // namespace trtspec::TRTSPEC_ISA_NS
