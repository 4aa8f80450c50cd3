// Rows of a cache become columns of floats. Only for kernel sources.
#pragma once
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Transposes a square of 32-bit elements: interleaving row i with row i + kLanes / 2, log2(kLanes)
// times.
TRTSPEC_INLINE void transpose_square(VU* rows) {
  VI low;
  VI high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = i / 2 + (i % 2) * kLanes;
    high[i] = low[i] + kLanes / 2;
  }
#pragma GCC unroll 4
  for (int stage = 1; stage < kLanes; stage *= 2) {
    VU next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// kLanes rows from element d on as a square of 32-bit elements, transposed; null rows are zeros.
template <class Value>
TRTSPEC_INLINE void load_square(const Value* const* rows, std::int64_t d, VU* square) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Loads put the halves of rows i and i + 4 side by side, so that nothing crosses from one half of
  // a vector to the other behind them: 16 shuffles in place of 48.
  static constexpr std::uint32_t kZeros[kLanes] = {};
  const auto halves_of = [&](int row) {
    const void* const from =
        rows[row] == nullptr ? static_cast<const void*>(kZeros) : rows[row] + d;
    return static_cast<const __m128i*>(from);
  };
  __m256i half[2][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m128i* const first = halves_of(i);
    const __m128i* const second = halves_of(i + 4);
    half[0][i] = _mm256_loadu2_m128i(second, first);
    half[1][i] = _mm256_loadu2_m128i(second + 1, first + 1);
  }
#pragma GCC unroll 2
  for (int side = 0; side < 2; ++side) {
    const __m256i a = _mm256_unpacklo_epi32(half[side][0], half[side][1]);
    const __m256i b = _mm256_unpackhi_epi32(half[side][0], half[side][1]);
    const __m256i c = _mm256_unpacklo_epi32(half[side][2], half[side][3]);
    const __m256i e = _mm256_unpackhi_epi32(half[side][2], half[side][3]);
    square[4 * side] = (VU)_mm256_unpacklo_epi64(a, c);
    square[4 * side + 1] = (VU)_mm256_unpackhi_epi64(a, c);
    square[4 * side + 2] = (VU)_mm256_unpacklo_epi64(b, e);
    square[4 * side + 3] = (VU)_mm256_unpackhi_epi64(b, e);
  }
#else
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    square[i] = rows[i] == nullptr ? VU{} : *reinterpret_cast<const VUu*>(rows[i] + d);
  }
  transpose_square(square);
#endif
}

template <class Ahead>
TRTSPEC_INLINE std::int64_t transpose_whole(const float* const* rows, std::int64_t dim, float* out,
                                            std::int64_t stride, Ahead& ahead) {
  std::int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    VU square[kLanes];
    load_square(rows, d, square);
    for (int i = 0; i < kLanes / 2; ++i) ahead.step();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) store(out + (d + i) * stride, (VF)square[i]);
  }
  return d;
}

TRTSPEC_INLINE VF low_half(VU pair, bf16) { return (VF)(pair << 16); }
TRTSPEC_INLINE VF high_half(VU pair, bf16) { return (VF)(pair & 0xffff0000u); }

TRTSPEC_INLINE VF widen_halves(VU bits) {
  const VH halves = narrow(bits);
#if defined(__AVX512F__)
  return _mm512_cvtph_ps((__m256i)halves);
#elif defined(__F16C__)
  return _mm256_cvtph_ps((__m128i)halves);
#else
  f16 value[kLanes];
  __builtin_memcpy(value, &halves, sizeof(halves));
  return load(value);
#endif
}

TRTSPEC_INLINE VF low_half(VU pair, f16) { return widen_halves(pair & 0xffffu); }
TRTSPEC_INLINE VF high_half(VU pair, f16) { return widen_halves(pair >> 16); }

// Pairs of 16-bit elements travel as one element of 32 bits.
template <class Value, class Ahead>
TRTSPEC_INLINE std::int64_t transpose_whole(const Value* const* rows, std::int64_t dim, float* out,
                                            std::int64_t stride, Ahead& ahead) {
  std::int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    VU square[kLanes];
    load_square(rows, d, square);
    for (int i = 0; i < kLanes / 2; ++i) ahead.step();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      store(out + (d + 2 * i) * stride, low_half(square[i], Value{}));
      store(out + (d + 2 * i + 1) * stride, high_half(square[i], Value{}));
    }
  }
  return d;
}

// Four 8-bit elements travel as one element of 32 bits.
template <class Ahead>
TRTSPEC_INLINE std::int64_t transpose_whole(const std::int8_t* const* rows, std::int64_t dim,
                                            float* out, std::int64_t stride, Ahead& ahead) {
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
    VU square[kLanes];
    load_square(rows, d, square);
    for (int i = 0; i < kLanes / 2; ++i) ahead.step();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const VI element = (VI)(square[i] << (24 - 8 * j)) >> 24;
        store(out + (d + 4 * i + j) * stride, __builtin_convertvector(element, VF));
      }
    }
  }
  return d;
}

// out[d * stride + i] = rows[i][d] for kLanes rows of `dim` elements; a null row is zeros.
template <class Value, class Ahead>
inline void transpose_rows(const Value* const* rows, std::int64_t dim, float* out,
                           std::int64_t stride, Ahead& ahead) {
  for (std::int64_t d = transpose_whole(rows, dim, out, stride, ahead); d < dim; ++d) {
    for (int i = 0; i < kLanes; ++i) {
      out[d * stride + i] = rows[i] == nullptr ? 0.0f : to_float(rows[i][d]);
    }
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
