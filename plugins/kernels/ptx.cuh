// The few instructions that CUDA C++ has no words for. emulation/ptx.hpp is the same in C++.
#pragma once

#include <cuda_runtime.h>
#include <trtspec/dtype.hpp>

#include <cstdint>

namespace trtspec::cuda {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

__device__ __forceinline__ void from_float(float x, float& out) { out = x; }
__device__ __forceinline__ void from_float(float x, bf16& out) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
}
__device__ __forceinline__ void from_float(float x, f16& out) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
}

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ __forceinline__ std::uint32_t pack<f16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// a * b + c of both halves, rounded once each; subnormal numbers are kept.
template <class T>
__device__ __forceinline__ std::uint32_t multiply_add_pairs(std::uint32_t a, std::uint32_t b,
                                                            std::uint32_t c);
template <>
__device__ __forceinline__ std::uint32_t multiply_add_pairs<bf16>(std::uint32_t a, std::uint32_t b,
                                                                  std::uint32_t c) {
  std::uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}
template <>
__device__ __forceinline__ std::uint32_t multiply_add_pairs<f16>(std::uint32_t a, std::uint32_t b,
                                                                 std::uint32_t c) {
  std::uint32_t pair;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}

__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<unsigned char*>(memory);
}

// A variable that the threads of a block share. Those of one type in a kernel are the same variable,
// unless they have different numbers.
template <class T, int kIndex = 0>
__device__ __forceinline__ T& static_shared() {
  __shared__ T memory;
  return memory;
}

// 16 bytes from global to shared memory, or zeros; there once waited for.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// For all copies but those of the thread's last groups that commit_copies ended.
template <int kGroups>
__device__ __forceinline__ void wait_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

struct Registers4 {
  std::uint32_t word[4];
};

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r brings the address of row r of matrix i.
__device__ __forceinline__ Registers4 load_matrices(const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  Registers4 out;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
               : "r"(from));
  return out;
}
__device__ __forceinline__ Registers4 load_matrices_transposed(const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  Registers4 out;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
               : "r"(from));
  return out;
}

// c += a b with a [16, 16] by rows, b [16, 8] by columns, c [16, 8].
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<bf16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<f16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace trtspec::cuda
