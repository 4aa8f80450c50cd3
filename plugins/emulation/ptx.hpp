// What kernels/ptx.cuh says in PTX, said in C++ for the emulator: fragments lie on the lanes as the
// PTX manual documents them for ldmatrix and mma.m16n8k16.
#pragma once

#include <cuda_runtime.h>
#include <trtspec/dtype.hpp>

#include <bit>
#include <cstdint>
#include <cstring>

namespace trtspec::cuda {

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }
inline float to_float(f16 x) {
  _Float16 half;
  std::memcpy(&half, &x, sizeof(half));
  return float(half);
}

inline void from_float(float x, float& out) { out = x; }
inline void from_float(float x, bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  out.bits = x != x ? 0x7fff : std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline void from_float(float x, f16& out) {
  const _Float16 half = static_cast<_Float16>(x);
  std::memcpy(&out, &half, sizeof(half));
}

template <class T>
std::uint32_t pack(float low, float high) {
  T pair[2];
  from_float(low, pair[0]);
  from_float(high, pair[1]);
  return std::bit_cast<std::uint32_t>(pair);
}

template <class T>
float unpack(std::uint32_t pair, int half) {
  return to_float(T{std::uint16_t(pair >> (16 * half))});
}

// Where T has the result, which is all that the kernels ask for: others may be rounded twice.
template <class T>
std::uint32_t multiply_add_pairs(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  float sums[2];
  for (int half = 0; half < 2; ++half) {
    sums[half] =
        float(double(unpack<T>(a, half)) * double(unpack<T>(b, half)) + double(unpack<T>(c, half)));
  }
  return pack<T>(sums[0], sums[1]);
}

inline unsigned char* dynamic_shared() { return emulation::state().shared.dynamic(); }

template <class T, int kIndex = 0>
T& static_shared() {
  static const char tag = 0;
  return *static_cast<T*>(emulation::state().shared.variable(&tag, sizeof(T), alignof(T)));
}

inline void copy_async(void* shared, const void* global, bool valid) {
  emulation::copy_async(shared, valid ? global : nullptr);
}
inline void commit_copies() { emulation::commit_copies(); }
inline void wait_copies() { emulation::wait_copies(); }
template <int kGroups>
void wait_copies_but() {
  emulation::wait_copies_but(kGroups);
}

struct Registers4 {
  std::uint32_t word[4];
};

// Matrix i's row r begins at the address that lane 8 i + r brings; a lane gets of each matrix the
// pair in row lane / 4, columns 2 (lane % 4) and one more.
inline Registers4 load_matrices(const void* row) {
  emulation::need_whole_warp();
  const auto rows = emulation::exchange(row);
  const int lane = emulation::lane();
  Registers4 out;
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&out.word[i], static_cast<const char*>(rows.of(8 * i + lane / 4)) + 4 * (lane % 4),
                4);
  }
  return out;
}

// The same of the transposed matrices.
inline Registers4 load_matrices_transposed(const void* row) {
  emulation::need_whole_warp();
  const auto rows = emulation::exchange(row);
  const int lane = emulation::lane();
  Registers4 out;
  for (int i = 0; i < 4; ++i) {
    std::uint16_t pair[2];
    for (int half = 0; half < 2; ++half) {
      std::memcpy(&pair[half],
                  static_cast<const char*>(rows.of(8 * i + 2 * (lane % 4) + half)) + 2 * (lane / 4),
                  2);
    }
    std::memcpy(&out.word[i], pair, 4);
  }
  return out;
}

// c += a b with a [16, 16] by rows, b [16, 8] by columns, c [16, 8].
template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulation::need_whole_warp();
  struct Fragment {
    std::uint32_t a[4];
    std::uint32_t b[2];
  };
  const auto lanes = emulation::exchange(Fragment{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int lane = emulation::lane();
  float left[2][16];
  float right[2][16];
  for (int quad = 0; quad < 4; ++quad) {  // the lanes that hold row lane / 4 of a, and row + 8
    const Fragment row = lanes.of(lane / 4 * 4 + quad);
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        left[i % 2][i / 2 * 8 + 2 * quad + half] = unpack<T>(row.a[i], half);
      }
    }
    for (int column = 0; column < 2; ++column) {
      const Fragment other = lanes.of((2 * (lane % 4) + column) * 4 + quad);
      for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
          right[column][i * 8 + 2 * quad + half] = unpack<T>(other.b[i], half);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) c[i] += left[i / 2][k] * right[i % 2][k];
  }
}

}  // namespace trtspec::cuda
