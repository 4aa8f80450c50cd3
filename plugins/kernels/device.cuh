// What every kernel source includes: the words of device code, from CUDA or from the emulator, and
// the few functions that all kernels share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include "ptx.cuh"
#else
#include <ptx.hpp>
#endif

namespace trtspec::cuda {

inline constexpr unsigned kWarp = 0xffffffffu;  // all lanes of a warp
inline constexpr int kLanes = 32;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

template <class T>
__host__ __device__ constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}

template <class T>
__host__ __device__ constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

__host__ __device__ constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The sum of the values of `width` neighbouring lanes, in one fixed order, on all of them.
template <class T>
__device__ __forceinline__ T sum_lanes(T value, int width = kLanes) {
  for (int lanes = width / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kWarp, value, lanes);
  return value;
}

template <class T>
__device__ __forceinline__ T largest_of_lanes(T value, int width = kLanes) {
  for (int lanes = width / 2; lanes > 0; lanes /= 2) {
    value = larger(value, __shfl_xor_sync(kWarp, value, lanes));
  }
  return value;
}

}  // namespace trtspec::cuda
