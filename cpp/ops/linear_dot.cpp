// The linear op in bfloat16 with the processor's dot product of pairs (AVX512_BF16): twice the
// multiply-adds of an instruction, and the inputs need no conversion.
#include <immintrin.h>

#include <cstring>

#include "gemm_block.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr int kGroups = 4;  // registers of 16 outputs that a panel takes

// Weights of two inputs, side by side for every output. The instruction interleaves within parts
// of 128 bits, so group 2h holds the outputs 0-3, 8-11, 16-19, 24-27 of half h, and group 2h + 1
// those between.
TRTSPEC_INLINE void load_pairs(const bf16* w, __m512bh pairs[kGroups]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i first = _mm512_loadu_si512(w + 32 * half);
    const __m512i second = _mm512_loadu_si512(w + kPanel + 32 * half);
    pairs[2 * half] = (__m512bh)_mm512_unpacklo_epi16(first, second);
    pairs[2 * half + 1] = (__m512bh)_mm512_unpackhi_epi16(first, second);
  }
}

// 32 sums from memory, where they stand in order, into the order of `load_pairs`, and back.
TRTSPEC_INLINE void load_sums(const float* from, __m512& low, __m512& high) {
  const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
  low = _mm512_shuffle_f32x4(a, b, 0x88);
  high = _mm512_shuffle_f32x4(a, b, 0xdd);
}

TRTSPEC_INLINE void store_sums(__m512 low, __m512 high, float* to) {
  const __m512 a = _mm512_shuffle_f32x4(low, high, 0x44);
  const __m512 b = _mm512_shuffle_f32x4(low, high, 0xee);
  _mm512_storeu_ps(to, _mm512_shuffle_f32x4(a, a, 0xd8));
  _mm512_storeu_ps(to + 16, _mm512_shuffle_f32x4(b, b, 0xd8));
}

// As gemm_rows for a panel of 64 outputs: every sum is one chain over the pairs of inputs.
template <int Rows, class Ahead>
__attribute__((noinline)) void dot_rows(std::int64_t depth, const bf16* x, std::int64_t x_stride,
                                        const bf16* w, float* sums, bool fresh, Ahead& ahead) {
  __m512 sum[Rows][kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512 &low = sum[r][2 * half], &high = sum[r][2 * half + 1];
      low = high = _mm512_setzero_ps();
      if (!fresh) load_sums(sums + r * kPanel + 32 * half, low, high);
    }
  }
  Ahead local = ahead;  // in registers
  for (std::int64_t k = 0; k < depth; k += 2) {
    local.step();
    __m512bh pairs[kGroups];
    load_pairs(w + k * kPanel, pairs);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      std::int32_t both;
      std::memcpy(&both, x + r * x_stride + k, sizeof both);
      const __m512bh value = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) sum[r][g] = _mm512_dpbf16_ps(sum[r][g], value, pairs[g]);
    }
  }
  ahead = local;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      store_sums(sum[r][2 * half], sum[r][2 * half + 1], sums + r * kPanel + 32 * half);
    }
  }
}

}  // namespace

void linear_dot(const LinearParams& params) {
  const std::int64_t depth = params.in_features;
  const bf16* inputs = static_cast<const bf16*>(params.x);
  constexpr int kRowBytes = int(kPanel * sizeof(bf16));
  constexpr std::int64_t kStep = kStepBytes / kRowBytes;
  run_panels<bf16>(params, [&](std::int64_t panel, std::int64_t first, std::int64_t rows,
                               float* sums) {
    const bf16* x = inputs + first * depth;
    const bf16* w = static_cast<const bf16*>(params.packed) + panel * depth * kPanel;
    for (std::int64_t k = 0; k == 0 || k < depth; k += kStep) {
      const std::int64_t n = depth - k < kStep ? depth - k : kStep;
      const bf16* part = w + k * kPanel;
      // As in linear_kernel.cpp: meanwhile the next step's weights come from memory. A step of
      // this loop reads two rows of weights.
      StreamAhead<2 * kRowBytes / 64> ahead{reinterpret_cast<const char*>(part + n * kPanel),
                                            2 * kRowBytes / row_blocks(rows)};
      for_row_blocks(rows, [&](auto count, std::int64_t block) {
        dot_rows<decltype(count)::value>(n, x + block * depth + k, depth, part,
                                         sums + block * kPanel, k == 0, ahead);
      });
    }
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
