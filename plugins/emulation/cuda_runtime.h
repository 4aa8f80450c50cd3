// Stands in for the CUDA runtime where kernels are compiled as C++: the words and functions of
// device code that the kernels use, on the threads of the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_runtime_api.h"
#include "emulator.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

using emulation::dim3;

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int bytes) {
  return emulation::allow_dynamic_shared(reinterpret_cast<const void*>(kernel), bytes);
}

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline dim3& threadIdx = emulation::state().thread_index;
inline dim3& blockIdx = emulation::state().block_index;
inline dim3& blockDim = emulation::state().block_dim;
inline dim3& gridDim = emulation::state().grid_dim;

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp() { emulation::warp_barrier(); }

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulation::exchange(value).of(lane & 31);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  return emulation::exchange(value).of(emulation::lane() ^ lanes);
}

template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  const int from = emulation::lane() - delta;
  return emulation::exchange(value).of(from < 0 ? emulation::lane() : from);
}

inline unsigned __ballot_sync(unsigned, bool value) {
  const auto votes = emulation::exchange(value);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(votes.of(lane)) << lane;
  return bits;
}

template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}

template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  if (value > old) *address = value;
  return old;
}

template <class T>
T atomicMin(T* address, T value) {
  const T old = *address;
  if (value < old) *address = value;
  return old;
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffsll(unsigned long long x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
