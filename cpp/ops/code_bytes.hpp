// Weights in codes as bytes without a sign, which are what they stand for plus a centre, and their
// products with inputs. Only for kernel sources.
#pragma once
#include <trtspec/linear.hpp>

#include <cstring>

#include "linear_kernel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Of 4 bits, less 8.
struct Nibbles {
  static constexpr int kBits = 4;
  static constexpr int kCentre = 8;

  explicit Nibbles(const LinearQuantisedParams&) {}

  // Those of inputs 4 i to 4 i + 3, of each output.
  TRTSPEC_INLINE VU bytes(VU codes, int i) const {
    return (i == 0 ? codes : codes >> 4) & 0x0f0f0f0fu;
  }
};

// Of 4 bits, places in a table of 16 values of 8 bits.
class TablePlaces {
 public:
  static constexpr int kBits = 4;
  static constexpr int kCentre = 128;

  explicit TablePlaces(const LinearQuantisedParams& params) {
    std::uint8_t values[kLanes * 4];
    for (int i = 0; i < kLanes * 4; ++i) values[i] = std::uint8_t(params.table[i % 16] + kCentre);
    std::memcpy(&table_, values, sizeof table_);
  }

  TRTSPEC_INLINE VU bytes(VU codes, int i) const {
    const VU places = (i == 0 ? codes : codes >> 4) & 0x0f0f0f0fu;
#if defined(__AVX512F__)
    return (VU)_mm512_shuffle_epi8((__m512i)table_, (__m512i)places);
#elif defined(__AVX2__)
    return (VU)_mm256_shuffle_epi8((__m256i)table_, (__m256i)places);
#else
    std::uint8_t all[kLanes * 4], values[16];
    std::memcpy(all, &places, sizeof all);
    std::memcpy(values, &table_, sizeof values);
    for (std::uint8_t& byte : all) byte = values[byte];
    VU found;
    std::memcpy(&found, all, sizeof found);
    return found;
#endif
  }

 private:
  VU table_;
};

// Of 8 bits, less 128.
struct WholeBytes {
  static constexpr int kBits = 8;
  static constexpr int kCentre = 128;

  explicit WholeBytes(const LinearQuantisedParams&) {}

  TRTSPEC_INLINE VU bytes(VU codes, int) const { return codes; }
};

// run(codes), of the type that the weights have.
template <class Run>
TRTSPEC_INLINE void with_codes(const LinearQuantisedParams& params, const Run& run) {
  if (params.bits == 8) return run(WholeBytes(params));
  if (params.table != nullptr) return run(TablePlaces(params));
  run(Nibbles(params));
}

// acc + the products of four unsigned bytes, in each element of `w`, and four signed ones. Of small
// bytes two products fit in 16 bits.
template <bool Small>
TRTSPEC_INLINE VI dot_bytes(VI acc, VU w, std::int32_t x) {
#if defined(__AVX512VNNI__)
  return (VI)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(x));
#elif defined(__AVX512F__)
  const __m512i codes = (__m512i)w, inputs = _mm512_set1_epi32(x);
  if (Small) {
    const __m512i pairs = _mm512_maddubs_epi16(codes, inputs);
    return acc + (VI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
  }
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(inputs, 8), 8));
  const __m512i odd =
      _mm512_madd_epi16(_mm512_srli_epi16(codes, 8), _mm512_srai_epi16(inputs, 8));
  return acc + (VI)even + (VI)odd;
#elif defined(__AVXVNNI__)
  return (VI)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, _mm256_set1_epi32(x));
#elif defined(__AVX2__)
  const __m256i codes = (__m256i)w, inputs = _mm256_set1_epi32(x);
  if (Small) {
    const __m256i pairs = _mm256_maddubs_epi16(codes, inputs);
    return acc + (VI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(inputs, 8), 8));
  const __m256i odd =
      _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(inputs, 8));
  return acc + (VI)even + (VI)odd;
#else
  for (int j = 0; j < 4; ++j) {
    acc += (VI)((w >> (8 * j)) & 255u) * std::int32_t(std::int8_t(x >> (8 * j)));
  }
  return acc;
#endif
}

// Four inputs by a load of their own, which processors repeat in a vector without a detour.
TRTSPEC_INLINE std::int32_t four_bytes(const std::int8_t* x) {
  std::int32_t value;
  std::memcpy(&value, x, sizeof value);
  return value;
}

// Sums of products over a group, by inputs in a block of `Rows` rows: of whole numbers.
template <class Codes>
struct ByteInputs {
  using Input = std::int8_t;
  using Sum = VI;

  static TRTSPEC_INLINE VI first(const CodeInputs& inputs, std::int64_t group) {
    return splat_int(inputs.centres[group]);
  }

  template <int Rows>
  static TRTSPEC_INLINE void add(const Codes& kind, VU codes, const std::int8_t* x, VI* sums) {
    constexpr int kVectors = 8 / Codes::kBits;
    VU bytes[kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) bytes[i] = kind.bytes(codes, i);
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        constexpr bool kSmall = Codes::kCentre == 8;
        sums[r] = dot_bytes<kSmall>(sums[r], bytes[i], four_bytes(x + (i * Rows + r) * 4));
      }
    }
  }

  static TRTSPEC_INLINE VF finish(VI sum) { return __builtin_convertvector(sum, VF); }
  static TRTSPEC_INLINE VF scaled(const CodeInputs& inputs, std::int64_t group, VF scale) {
    return scale * inputs.scales[group];
  }
};

// And of floats, one after the other.
template <class Codes>
struct FloatInputs {
  using Input = float;
  using Sum = VF;

  static TRTSPEC_INLINE VF first(const CodeInputs&, std::int64_t) { return splat(0); }

  template <int Rows>
  static TRTSPEC_INLINE void add(const Codes& kind, VU codes, const float* x, VF* sums) {
#pragma GCC unroll 8
    for (int k = 0; k < 32 / Codes::kBits; ++k) {
      const VI byte = (VI)((kind.bytes(codes, k / 4) >> (8 * (k % 4))) & 255u);
      const VF weight = __builtin_convertvector(byte - Codes::kCentre, VF);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) sums[r] = fma(weight, splat(x[k * Rows + r]), sums[r]);
    }
  }

  static TRTSPEC_INLINE VF finish(VF sum) { return sum; }
  static TRTSPEC_INLINE VF scaled(const CodeInputs&, std::int64_t, VF scale) { return scale; }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
