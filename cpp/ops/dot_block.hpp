// A small product by the processor's dot product of pairs of bfloat16 (AVX512_BF16), the core of
// linear_dot.cpp and attention_dot.cpp. Only for sources compiled for it.
#pragma once
#include <immintrin.h>
#include <trtspec/linear.hpp>

#include <cstring>

#include "gemm_block.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// The sums of pairs whose registers hold 16 outputs each, in their order.
template <int Registers>
struct SumsInOrder {
  static constexpr int kRegisters = Registers;

  static TRTSPEC_INLINE void load_sums(const float* from, __m512* sums) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) sums[i] = _mm512_loadu_ps(from + 16 * i);
  }

  static TRTSPEC_INLINE void store_sums(const __m512* sums, float* to) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) _mm512_storeu_ps(to + 16 * i, sums[i]);
  }
};

// Pairs as they stand in memory, of 16 * Registers outputs of a panel: two inputs side by side for
// each.
template <int Registers>
struct StoredPairs : SumsInOrder<Registers> {
  using Weight = bf16;

  static TRTSPEC_INLINE void load(const bf16* w, __m512bh* pairs) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) pairs[i] = (__m512bh)_mm512_loadu_si512(w + 32 * i);
  }
};

// As gemm_rows for the outputs of `Pairs`, of a panel: every sum is one chain over the pairs of
// inputs.
template <int Rows, class Pairs, class Ahead>
__attribute__((noinline)) void dot_rows(std::int64_t depth, const bf16* x, std::int64_t x_stride,
                                        const typename Pairs::Weight* w, float* sums, bool fresh,
                                        Ahead& ahead) {
  constexpr int kRegisters = Pairs::kRegisters;
  __m512 sum[Rows][kRegisters];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    if (!fresh) {
      Pairs::load_sums(sums + r * kPanel, sum[r]);
      continue;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; ++i) sum[r][i] = _mm512_setzero_ps();
  }
  Ahead local = ahead;  // in registers
  for (std::int64_t k = 0; k < depth; k += 2) {
    local.step();
    __m512bh pairs[kRegisters];
    Pairs::load(w + k * kPanel, pairs);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      std::int32_t both;
      std::memcpy(&both, x + r * x_stride + k, sizeof both);
      const __m512bh value = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; ++i) {
        sum[r][i] = _mm512_dpbf16_ps(sum[r][i], value, pairs[i]);
      }
    }
  }
  ahead = local;
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) Pairs::store_sums(sum[r], sums + r * kPanel);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
