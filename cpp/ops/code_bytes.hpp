// Weights in codes as bytes without a sign, which are what they stand for plus a centre, and their
// products with inputs. Only for kernel sources.
#pragma once
#include <trtspec/linear.hpp>

#include <cstring>
#include <type_traits>

#include "linear_kernel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr int kCodeVectors = kCodeOutputs / kLanes;  // of the outputs of a panel
typedef std::uint32_t VUc __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));

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

// What the bytes of integers stand for: those of input k of a line, of each output.
template <class Codes>
TRTSPEC_INLINE VF value_of(const Codes& kind, VU codes, int k) {
  const VI byte = (VI)((kind.bytes(codes, k / 4) >> (8 * (k % 4))) & 255u);
  return __builtin_convertvector(byte - Codes::kCentre, VF);
}

// Floats of 8 bits: a sign, 4 bits of exponent with a bias of 7, 3 of mantissa; no infinities.
struct SmallFloats {
  static constexpr int kBits = 8;

  explicit SmallFloats(const LinearQuantisedParams&) {}
};

// As floats of 32 bits whose bias is 120 more, which is then made up for; so are denormal ones.
TRTSPEC_INLINE VF value_of(const SmallFloats&, VU codes, int k) {
  const VU byte = codes >> (8 * k);
  return (VF)(((byte & 0x80u) << 24) | ((byte & 0x7fu) << 20)) * 0x1p120f;
}

// run(codes), of the type that the weights have, which are integers.
template <class Run>
TRTSPEC_INLINE void with_codes(const LinearQuantisedParams& params, const Run& run) {
  if (params.bits == 8) return run(WholeBytes(params));
  if (params.table != nullptr) return run(TablePlaces(params));
  run(Nibbles(params));
}

// Sums of products of bytes of weights, four in each element, and four inputs.
struct WordSums {
  using Part = VI;
  static constexpr std::int64_t kMostLines = 0;  // any number

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
  // Of what bytes with the centre 128 stand for, by magnitudes and inputs that take the signs: two
  // such products fit in 16 bits, where two of bytes do not.
  static constexpr bool kOfBytes = false;

  static TRTSPEC_INLINE VI add(VI sums, VU bytes, std::int32_t x) {
    const __m256i weights = (__m256i)(bytes ^ 0x80808080u);
    const __m256i inputs = _mm256_sign_epi8(_mm256_set1_epi32(x), weights);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), inputs);
    return sums + (VI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#else
  static constexpr bool kOfBytes = true;

  static TRTSPEC_INLINE VI add(VI sums, VU bytes, std::int32_t x) {
#if defined(__AVX512VNNI__)
    return (VI)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, _mm512_set1_epi32(x));
#elif defined(__AVX512F__)
    const __m512i codes = (__m512i)bytes, inputs = _mm512_set1_epi32(x);
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(inputs, 8), 8));
    const __m512i odd =
        _mm512_madd_epi16(_mm512_srli_epi16(codes, 8), _mm512_srai_epi16(inputs, 8));
    return sums + (VI)even + (VI)odd;
#elif defined(__AVXVNNI__)
    return (VI)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)bytes, _mm256_set1_epi32(x));
#else
    for (int j = 0; j < 4; ++j) {
      sums += (VI)((bytes >> (8 * j)) & 255u) * std::int32_t(std::int8_t(x >> (8 * j)));
    }
    return sums;
#endif
  }
#endif

  static TRTSPEC_INLINE VI begin(VI centre) { return centre; }
  static TRTSPEC_INLINE VI total(VI sums, VI) { return sums; }
};

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
// The same of bytes below 16, in 16 bits by twos: these hold 8 sums of two products.
struct ShortSums {
  typedef std::int16_t Part __attribute__((vector_size(kLanes * 4)));
  static constexpr std::int64_t kMostLines = 4;

  static TRTSPEC_INLINE Part add(Part sums, VU bytes, std::int32_t x) {
#if defined(__AVX512F__)
    return sums + (Part)_mm512_maddubs_epi16((__m512i)bytes, _mm512_set1_epi32(x));
#else
    sums += (Part)_mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi32(x));
    // Compilers would make the products of all rows first, for which there are no registers.
    asm volatile("" : "+x"(sums));
    return sums;
#endif
  }

  static TRTSPEC_INLINE Part begin(VI) { return Part{}; }
  static TRTSPEC_INLINE VI total(Part sums, VI centre) { return plus(centre, sums); }
  static TRTSPEC_INLINE VI plus(VI total, Part sums) {
#if defined(__AVX512F__)
    return total + (VI)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1));
#else
    return total + (VI)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
#endif
  }
};
template <class Codes>
using ByteSums = std::conditional_t<Codes::kCentre == 8, ShortSums, WordSums>;
#else
template <class Codes>
using ByteSums = WordSums;
#endif

// Sums plus products of two numbers of 16 bits in each element, and two inputs.
TRTSPEC_INLINE VI add_words(VI sums, VU words, std::int32_t x) {
#if defined(__AVX512VNNI__)
  return (VI)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)words, _mm512_set1_epi32(x));
#elif defined(__AVX512F__)
  return sums + (VI)_mm512_madd_epi16((__m512i)words, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__)
  return (VI)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)words, _mm256_set1_epi32(x));
#elif defined(__AVX2__)
  return sums + (VI)_mm256_madd_epi16((__m256i)words, _mm256_set1_epi32(x));
#else
  const VI low = (VI)(words & 0xffffu) * std::int32_t(std::int16_t(x));
  return sums + low + (VI)(words >> 16) * (x >> 16);
#endif
}

// What is multiplied together, by a load of its own, which processors repeat in a vector without a
// detour.
TRTSPEC_INLINE std::int32_t four_bytes(const void* x) {
  std::int32_t value;
  std::memcpy(&value, x, sizeof value);
  return value;
}

// Sums of products over a group, by inputs in a block of `Rows` rows: of whole numbers. They begin
// as `begin`, take up kMostLines lines of codes at most by `add`, or any number of them if that is
// 0, and are then the `total`. Sums of further lines, which begin at zero, join that by `plus`.
template <class Codes>
struct ByteInputs {
  using Input = std::int8_t;
  using Sums = ByteSums<Codes>;
  using Part = typename Sums::Part;
  using Sum = VI;
  static constexpr bool kOfFloats = false;
  static constexpr std::int64_t kMostLines = Sums::kMostLines;

  static TRTSPEC_INLINE VI centre(const CodeInputs& inputs, std::int64_t group) {
    if (Codes::kCentre == 128 && !WordSums::kOfBytes) return VI{};
    return splat_int(inputs.centres[group]);
  }

  static TRTSPEC_INLINE Part begin(const CodeInputs& inputs, std::int64_t group) {
    return Sums::begin(centre(inputs, group));
  }

  template <int Rows>
  static TRTSPEC_INLINE void add(const Codes& kind, const VUc* codes, const std::int8_t* x,
                                 Part (*parts)[kCodeVectors]) {
#pragma GCC unroll 2
    for (int i = 0; i < 8 / Codes::kBits; ++i, x += 4 * Rows) {
      VU bytes[kCodeVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kCodeVectors; ++v) bytes[v] = kind.bytes(codes[v], i);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const std::int32_t inputs = four_bytes(x + r * 4);
#pragma GCC unroll 4
        for (int v = 0; v < kCodeVectors; ++v) {
          parts[r][v] = Sums::add(parts[r][v], bytes[v], inputs);
        }
      }
    }
  }

  static TRTSPEC_INLINE VI total(Part part, const CodeInputs& inputs, std::int64_t group) {
    return Sums::total(part, centre(inputs, group));
  }
  static TRTSPEC_INLINE VI plus(VI total, Part part) { return Sums::plus(total, part); }

  static TRTSPEC_INLINE VF finish(VI sum) { return __builtin_convertvector(sum, VF); }
  static TRTSPEC_INLINE VF scaled(const CodeInputs& inputs, std::int64_t group, VF scale) {
    return scale * inputs.scales[group];
  }
};

// The same of 16 bits, by weights that are widened to as many once for all rows.
template <class Codes>
struct ShortInputs {
  using Input = std::int16_t;
  using Sum = VI;
  using Part = VI;
  static constexpr bool kOfFloats = false;
  static constexpr std::int64_t kMostLines = 0;

  static TRTSPEC_INLINE VI begin(const CodeInputs& inputs, std::int64_t group) {
    return splat_int(inputs.centres[group]);
  }
  static TRTSPEC_INLINE VI total(VI part, const CodeInputs&, std::int64_t) { return part; }

  template <int Rows>
  static TRTSPEC_INLINE void add(const Codes& kind, const VUc* codes, const std::int16_t* x,
                                 VI (*parts)[kCodeVectors]) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * (8 / Codes::kBits); ++i, x += 2 * Rows) {
      VU words[kCodeVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kCodeVectors; ++v) {
        words[v] = kind.bytes(codes[v], i / 2) >> (8 * (i % 2)) & 0x00ff00ffu;
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const std::int32_t inputs = four_bytes(x + r * 2);
#pragma GCC unroll 4
        for (int v = 0; v < kCodeVectors; ++v) {
          parts[r][v] = add_words(parts[r][v], words[v], inputs);
        }
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
  using Part = VF;
  static constexpr bool kOfFloats = true;
  static constexpr std::int64_t kMostLines = 0;

  static TRTSPEC_INLINE VF begin(const CodeInputs&, std::int64_t) { return VF{}; }
  static TRTSPEC_INLINE VF total(VF part, const CodeInputs&, std::int64_t) { return part; }

  template <int Rows>
  static TRTSPEC_INLINE void add(const Codes& kind, const VUc* codes, const float* x,
                                 VF (*sums)[kCodeVectors]) {
#pragma GCC unroll 8
    for (int k = 0; k < 32 / Codes::kBits; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kCodeVectors; ++v) {
        const VF weight = value_of(kind, codes[v], k);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          sums[r][v] = fma(weight, splat(x[k * Rows + r]), sums[r][v]);
        }
      }
    }
  }

  static TRTSPEC_INLINE VF finish(VF sum) { return sum; }
  static TRTSPEC_INLINE VF scaled(const CodeInputs&, std::int64_t, VF scale) { return scale; }
};

}  // namespace trtspec::TRTSPEC_ISA_NS
