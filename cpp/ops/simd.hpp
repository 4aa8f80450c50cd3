// Vectors of floats with the width of the instruction set being compiled for. Only for kernel
// sources (see isa.hpp). Arithmetic (+ - * /, comparisons, shifts) works on them directly: they are
// compiler vector types.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

#include "isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trtspec::TRTSPEC_ISA_NS {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VF __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t VI __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t VU __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t VH __attribute__((vector_size(kLanes * 2)));
// The same for memory that need not be aligned.
typedef float VFu __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::uint32_t VUu __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::uint16_t VHu __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

#define TRTSPEC_INLINE inline __attribute__((always_inline))
#define TRTSPEC_INLINE_LAMBDA __attribute__((always_inline))

TRTSPEC_INLINE VF splat(float x) { return x - VF{}; }
TRTSPEC_INLINE VI splat_int(std::int32_t x) { return x - VI{}; }

// a * b + c; rounded once where the processor has a fused multiply-add (not on `generic`).
TRTSPEC_INLINE VF fma(VF a, VF b, VF c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

TRTSPEC_INLINE VF max(VF a, VF b) { return a > b ? a : b; }

// -- one value ---------------------------------------------------------------------------------

TRTSPEC_INLINE float to_float(float x) { return x; }

TRTSPEC_INLINE float to_float(std::int8_t x) { return float(x); }

TRTSPEC_INLINE float to_float(bf16 x) {
  return __builtin_bit_cast(float, std::uint32_t(x.bits) << 16);
}

TRTSPEC_INLINE float to_float(f16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  // Shifted into place, exponent and mantissa of a half are those of a float 2^112 times smaller.
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
  const std::uint32_t rest = std::uint32_t(x.bits & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) {  // infinity, NaN
    return __builtin_bit_cast(float, sign | rest | 0x7f800000u);
  }
  const float value = __builtin_bit_cast(float, rest) * 0x1p112f;
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | sign);
#endif
}

TRTSPEC_INLINE void from_float(float x, float* out) { *out = x; }

TRTSPEC_INLINE void from_float(float x, bf16* out) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  out->bits = x != x ? 0x7fc0 : std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TRTSPEC_INLINE void from_float(float x, f16* out) {
#if defined(__F16C__)
  out->bits = std::uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal half: let the addition round
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    half = __builtin_bit_cast(std::uint32_t, sum) - 0x3f000000u;
  } else {
    half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out->bits = std::uint16_t(sign | half);
#endif
}

// -- 16-bit lanes; written out, as the compiler's own conversion takes a detour -----------------

TRTSPEC_INLINE VU widen(VH v) {
#if defined(__AVX512F__)
  return (VU)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return (VU)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, VU);
#endif
}

TRTSPEC_INLINE VH narrow(VU v) {
#if defined(__AVX512F__)
  return (VH)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)(v & 0xffffu), _mm256_setzero_si256());
  return (VH)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(v, VH);
#endif
}

// -- loads and stores, converting; no alignment needed -----------------------------------------

TRTSPEC_INLINE VF load(const float* p) { return *reinterpret_cast<const VFu*>(p); }

TRTSPEC_INLINE VF load(const bf16* p) {
  return (VF)(widen(*reinterpret_cast<const VHu*>(p)) << 16);
}

TRTSPEC_INLINE VF load(const f16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  VF v{};
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

TRTSPEC_INLINE VF load(const std::int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  VF v{};
  for (int i = 0; i < kLanes; ++i) v[i] = float(p[i]);
  return v;
#endif
}

TRTSPEC_INLINE void store(float* p, VF v) { *reinterpret_cast<VFu*>(p) = v; }

TRTSPEC_INLINE void store(bf16* p, VF v) {
  const VU bits = (VU)v;
  const VU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VU nan = (VU)splat_int(0x7fc0);
  *reinterpret_cast<VHu*>(p) = narrow(v == v ? rounded : nan);
}

TRTSPEC_INLINE void store(f16* p, VF v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) from_float(v[i], p + i);
#endif
}

// -- the first few elements of a vector; zeros stand for the rest --------------------------------

template <class Value>
TRTSPEC_INLINE VF load_first(const Value* p, std::int64_t count) {
  if (count >= kLanes) return load(p);
  VF v{};
  for (int i = 0; i < count; ++i) v[i] = to_float(p[i]);
  return v;
}

template <class Value>
TRTSPEC_INLINE void store_first(Value* p, VF v, std::int64_t count) {
  if (count >= kLanes) return store(p, v);
  for (int i = 0; i < count; ++i) from_float(v[i], p + i);
}

// -- functions ---------------------------------------------------------------------------------

// e^x to about 1 ulp; 0 below -87.3 (where the true value is about to become subnormal), infinity
// above 88.7. NaN stays NaN.
TRTSPEC_INLINE VF exp(VF x) {
  const VF low = splat(-87.33654f);
  const VF high = splat(88.72283f);
  const VF clamped = x < low ? low : x > high ? high : x;
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer.
  const VF magic = splat(12582912.0f);
  const VF shifted = fma(clamped, splat(1.44269504f), magic);
  const VF n = shifted - magic;
  VF r = fma(n, splat(-0.693145751953125f), clamped);
  r = fma(n, splat(-1.42860682030941723212e-6f), r);
  VF p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  // 2^n in two factors, as n = 128 has no float of its own.
  const VI whole = (VI)shifted - (VI)magic;
  const VI half = whole >> 1;
  const VF y = p * (VF)((half + 127) << 23) * (VF)((whole - half + 127) << 23);
  return x < low ? VF{} : x > high ? splat(__builtin_inff()) : y;
}

// tanh(x) to a few ulp: a polynomial (Cephes) up to |x| = 0.625, beyond it 1 - 2 / (e^(2|x|) + 1).
TRTSPEC_INLINE VF tanh(VF x) {
  const VF size = x < VF{} ? -x : x;
  const VF square = x * x;
  VF p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  p = fma(p * square, x, x);
  const VF far = splat(1.0f) - splat(2.0f) / (exp(size + size) + 1.0f);
  return size < splat(0.625f) ? p : x < VF{} ? -far : far;
}

// The lanes of 16 partial sums, added in one fixed order: the same on every instruction set.
TRTSPEC_INLINE float sum16(const float* lane) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
