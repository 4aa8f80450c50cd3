// The product by weights in codes, compiled once an instruction set. Only for kernel sources.
#pragma once
#include <trtspec/linear.hpp>

#include <cstring>

#include "linear_kernel.hpp"
#include "linear_panels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr int kCodeLine = 64;             // bytes of a block of inputs, of all outputs of a panel
constexpr std::int64_t kCodeChunk = 96;   // rows of a task: their codes stay in the second cache
#if defined(__AVX512F__)
constexpr int kCodeRows = 12;  // whose sums fit in registers together
#elif defined(__AVX2__)
constexpr int kCodeRows = 5;
#else
constexpr int kCodeRows = 2;
#endif

typedef std::uint32_t VUc __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));

// acc + the products of four unsigned bytes, in each element of `w`, and four signed ones. Small
// bytes are those of 4 bits.
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
#elif defined(__AVX2__)
  const __m256i codes = (__m256i)w, inputs = _mm256_set1_epi32(x);
  if (Small) {
    const __m256i pairs = _mm256_maddubs_epi16(codes, inputs);
    return acc + (VI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  // Pairs of larger bytes would not fit in 16 bits.
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

// Sums of products over a group: of whole numbers.
template <int Bits>
struct ByteInputs {
  using Input = std::int8_t;
  using Sum = VI;

  static TRTSPEC_INLINE VI first(const CodeInputs& inputs, std::int64_t group) {
    return splat_int(inputs.centres[group]);
  }

  template <int Rows>
  static TRTSPEC_INLINE void add(VU codes, const std::int8_t* x, std::int64_t stride, VI* sums) {
    const VU low = Bits == 4 ? codes & 0x0f0f0f0fu : codes;
    const VU high = (codes >> 4) & 0x0f0f0f0fu;
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      std::int32_t values[2];
      std::memcpy(values, x + r * stride, Bits == 4 ? 8 : 4);
      sums[r] = dot_bytes<Bits == 4>(sums[r], low, values[0]);
      if (Bits == 4) sums[r] = dot_bytes<true>(sums[r], high, values[1]);
    }
  }

  static TRTSPEC_INLINE VF finish(VI sum) { return __builtin_convertvector(sum, VF); }
  static TRTSPEC_INLINE VF scaled(const CodeInputs& inputs, std::int64_t group, VF scale) {
    return scale * inputs.scales[group];
  }
};

// And of floats, one after the other.
template <int Bits>
struct FloatInputs {
  using Input = float;
  using Sum = VF;

  static TRTSPEC_INLINE VF first(const CodeInputs&, std::int64_t) { return splat(0); }

  template <int Rows>
  static TRTSPEC_INLINE void add(VU codes, const float* x, std::int64_t stride, VF* sums) {
#pragma GCC unroll 8
    for (int k = 0; k < 32 / Bits; ++k) {
      const VI code = (VI)((codes >> (8 * (k % 4) + k / 4 * 4)) & ((1u << Bits) - 1u));
      const VF weight = __builtin_convertvector(code - (1 << (Bits - 1)), VF);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) sums[r] = fma(weight, splat(x[r * stride + k]), sums[r]);
    }
  }

  static TRTSPEC_INLINE VF finish(VF sum) { return sum; }
  static TRTSPEC_INLINE VF scaled(const CodeInputs&, std::int64_t, VF scale) { return scale; }
};

TRTSPEC_INLINE VF load_scales(const LinearQuantisedParams& params, const void* from,
                              std::int64_t index) {
  if (params.scale_dtype == DType::f16) return load(static_cast<const f16*>(from) + index);
  return load(static_cast<const float*>(from) + index);
}

// sums [Rows][16] of a panel, for rows from `first` on.
template <int Bits, template <int> class Inputs, int Rows>
__attribute__((noinline)) void multiply_codes(const LinearQuantisedParams& params,
                                              const CodeInputs& inputs, std::int64_t panel,
                                              std::int64_t first, float* sums) {
  using Kind = Inputs<Bits>;
  constexpr std::int64_t kBlock = 32 / Bits;
  const std::int64_t depth = params.linear.in_features;
  const std::int64_t blocks = (depth + kBlock - 1) / kBlock;
  const std::int64_t group_size = params.group_size > 0 ? params.group_size : depth;
  const std::int64_t weight_groups = (depth + group_size - 1) / group_size;
  const auto* packed = static_cast<const std::uint8_t*>(params.linear.packed);
  const auto* x = static_cast<const typename Kind::Input*>(inputs.x) + first * inputs.stride;
  for (int v = 0; v < kCodeOutputs; v += kLanes) {
    const std::uint8_t* w = packed + panel * blocks * kCodeLine + v * 4;
    VF sum[Rows] = {};
    for (std::int64_t g = 0; g < inputs.groups; ++g) {
      const std::int64_t begin = g * inputs.size / kBlock;
      const std::int64_t last = (g + 1) * inputs.size / kBlock;
      const std::int64_t end = g + 1 == inputs.groups ? blocks : last;
      const std::int64_t of_row = first * inputs.groups + g;
      typename Kind::Sum part[Rows];
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) part[r] = Kind::first(inputs, of_row + r * inputs.groups);
      for (std::int64_t b = begin; b < end; ++b) {
        const VU codes = *reinterpret_cast<const VUc*>(w + b * kCodeLine);
        Kind::template add<Rows>(codes, x + b * kBlock, inputs.stride, part);
      }
      const std::int64_t weight_group =
          panel * weight_groups + (params.group_size > 0 ? g * inputs.size / group_size : 0);
      const std::int64_t index = weight_group * kCodeOutputs + v;
      const VF scale = load_scales(params, params.scales, index);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const VF factor = Kind::scaled(inputs, of_row + r * inputs.groups, scale);
        sum[r] = fma(Kind::finish(part[r]), factor, sum[r]);
      }
      if (params.zeros == nullptr && params.offsets == nullptr) continue;
      const VF offset = params.zeros != nullptr ? -load(params.zeros + index) * scale
                                                : load_scales(params, params.offsets, index);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        sum[r] = fma(offset, splat(inputs.sums[of_row + r * inputs.groups]), sum[r]);
      }
    }
    for (int r = 0; r < Rows; ++r) store(sums + r * kCodeOutputs + v, sum[r]);
  }
}

template <int Bits, template <int> class Inputs, int Rows = 1>
TRTSPEC_INLINE void multiply_rows(std::int64_t rows, const LinearQuantisedParams& params,
                                  const CodeInputs& inputs, std::int64_t panel,
                                  std::int64_t first, float* sums) {
  if (rows == Rows) return multiply_codes<Bits, Inputs, Rows>(params, inputs, panel, first, sums);
  if constexpr (Rows < kCodeRows) {
    multiply_rows<Bits, Inputs, Rows + 1>(rows, params, inputs, panel, first, sums);
  }
}

template <class Value, class Out, int Bits, template <int> class Inputs>
void run_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  const LinearParams& linear = params.linear;
  const std::int64_t panels = (linear.out_features + kCodeOutputs - 1) / kCodeOutputs;
  const std::int64_t chunks = (linear.rows + kCodeChunk - 1) / kCodeChunk;
  const double per_row = double(linear.in_features) * double(linear.out_features);
  const int threads = threads_for(per_row * double(linear.rows < 4 ? 4 : linear.rows), kGrain);
  if (threads > 1) {
    read_next(linear.packed, panels * linear.in_features * kCodeOutputs * Bits / 8);
  }
  parallel_for(panels * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t panel = task % panels, chunk = task / panels;
    const std::int64_t begin = linear.rows * chunk / chunks;
    const std::int64_t count = linear.rows * (chunk + 1) / chunks - begin;
    const std::int64_t blocks = (count + kCodeRows - 1) / kCodeRows;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t first = begin + count * b / blocks;
      const std::int64_t rows = begin + count * (b + 1) / blocks - first;
      alignas(64) float sums[kCodeRows * kCodeOutputs];
      multiply_rows<Bits, Inputs>(rows, params, inputs, panel, first, sums);
      finish_outputs<Value, Out, kCodeOutputs>(linear, panel, first, rows, sums);
    }
  });
}

template <int Bits, template <int> class Inputs, class Value>
void run_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  switch (params.linear.out_dtype) {
    case DType::f32: return run_codes<Value, float, Bits, Inputs>(params, inputs);
    case DType::bf16: return run_codes<Value, bf16, Bits, Inputs>(params, inputs);
    case DType::f16: return run_codes<Value, f16, Bits, Inputs>(params, inputs);
  }
}

template <int Bits, template <int> class Inputs>
void run_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  switch (params.linear.dtype) {
    case DType::f32: return run_codes<Bits, Inputs, float>(params, inputs);
    case DType::bf16: return run_codes<Bits, Inputs, bf16>(params, inputs);
    case DType::f16: return run_codes<Bits, Inputs, f16>(params, inputs);
  }
}

template <template <int> class Inputs>
void run_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  if (params.bits == 4) return run_codes<4, Inputs>(params, inputs);
  run_codes<8, Inputs>(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
