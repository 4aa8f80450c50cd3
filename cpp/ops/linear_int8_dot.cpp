// The linear op with int8 weights and bfloat16 inputs, with the processor's dot product of pairs
// (AVX512_BF16): a byte is exact in bfloat16, so the weights are converted, never rounded.
#include "dot_block.hpp"
#include "linear_int8_step.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

// Sixteen bytes as floats, of which the lower halves are zero.
TRTSPEC_INLINE __m512i floats_of(const std::int8_t* w) {
  return _mm512_castps_si512((__m512)load(w));
}

// Pairs of 16 * Registers outputs, in their order, made of bytes.
template <int Registers>
struct BytePairs {
  using Weight = std::int8_t;
  static constexpr int kRegisters = Registers;

  static TRTSPEC_INLINE void load(const std::int8_t* w, __m512bh* pairs) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) {
      const __m512i first = floats_of(w + 16 * i), second = floats_of(w + kPanel + 16 * i);
      pairs[i] = (__m512bh)_mm512_or_si512(_mm512_srli_epi32(first, 16), second);
    }
  }

  static TRTSPEC_INLINE void load_sums(const float* from, __m512* sums) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) sums[i] = _mm512_loadu_ps(from + 16 * i);
  }

  static TRTSPEC_INLINE void store_sums(const __m512* sums, float* to) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) _mm512_storeu_ps(to + 16 * i, sums[i]);
  }
};

// More rows than a block has fit into the registers with half a panel, so that still no weight is
// converted twice.
constexpr int kHalfRows = 2 * kRowBlock;

// body(RowCount<rows>) for kRowBlock < rows <= kHalfRows.
template <class Body, int Rows = kRowBlock + 1>
TRTSPEC_INLINE void with_half_rows(std::int64_t rows, const Body& body) {
  if (rows == Rows) return body(RowCount<Rows>{});
  if constexpr (Rows < kHalfRows) with_half_rows<Body, Rows + 1>(rows, body);
}

struct Panel {
  const LinearInt8Params& params;
  const bf16* x;  // of the first of `rows` rows
  std::int64_t rows;
  float* sums;

  // A step for `count` rows from `first` on.
  template <class Product>
  TRTSPEC_INLINE void step(std::int64_t k, std::int64_t n, const float* scales, int count,
                           std::int64_t first, const Product& product) const {
    alignas(64) float part[kHalfRows * kPanel];
    const bf16* from = x + first * params.linear.in_features + k;
    for_groups(params, scales, k, n, count, part, sums + first * kPanel,
               [&](std::int64_t offset, std::int64_t depth, float* to, bool fresh) {
                 product(offset, depth, from + offset, to, fresh);
               });
  }

  // Few rows: the weights are converted in registers.
  void few(std::int64_t panel) const {
    const std::int64_t stride = params.linear.in_features;
    for_steps<2>(params, panel, 1, [&](std::int64_t k, std::int64_t n, const std::int8_t* w,
                                       const float* scales, auto& ahead) {
      for_row_blocks(rows, [&](auto rows_of, std::int64_t first) {
        constexpr int kRows = decltype(rows_of)::value;
        step(k, n, scales, kRows, first, [&](auto offset, auto depth, const bf16* from, float* to,
                                             bool fresh) {
          dot_rows<kRows, BytePairs<4>>(depth, from, stride, w + offset * kPanel, to, fresh,
                                        ahead);
        });
      });
    });
  }

  void half(std::int64_t panel) const {
    const std::int64_t stride = params.linear.in_features;
    for_steps<2>(params, panel, 2, [&](std::int64_t k, std::int64_t n, const std::int8_t* w,
                                       const float* scales, auto& ahead) {
      with_half_rows(rows, [&](auto rows_of) {
        constexpr int kRows = decltype(rows_of)::value;
        step(k, n, scales, kRows, 0, [&](auto offset, auto depth, const bf16* from, float* to,
                                         bool fresh) {
          for (int begin = 0; begin < kPanel; begin += kPanel / 2) {
            dot_rows<kRows, BytePairs<2>>(depth, from, stride, w + offset * kPanel + begin,
                                          to + begin, fresh, ahead);
          }
        });
      });
    });
  }

  // Many rows: the weights of a step are converted once, into the first-level cache.
  void many(std::int64_t panel) const {
    const std::int64_t stride = params.linear.in_features;
    alignas(64) bf16 wide[kInt8Step * kPanel];
    for_steps<2>(params, panel, row_blocks(rows), [&](std::int64_t k, std::int64_t n,
                                                      const std::int8_t* w, const float* scales,
                                                      auto& ahead) {
      for (std::int64_t i = 0; i < n * kPanel; i += 16) {
        const __m512i upper = _mm512_srli_epi32(floats_of(w + i), 16);
        _mm256_store_si256(reinterpret_cast<__m256i*>(wide + i), _mm512_cvtepi32_epi16(upper));
      }
      for_row_blocks(rows, [&](auto rows_of, std::int64_t first) {
        constexpr int kRows = decltype(rows_of)::value;
        step(k, n, scales, kRows, first, [&](auto offset, auto depth, const bf16* from, float* to,
                                             bool fresh) {
          dot_rows<kRows, PanelPairs>(depth, from, stride, wide + offset * kPanel, to, fresh,
                                      ahead);
        });
      });
    });
  }
};

}  // namespace

void linear_int8_dot(const LinearInt8Params& params) {
  const bf16* x = static_cast<const bf16*>(params.linear.x);
  run_panels<bf16>(params.linear, [&](std::int64_t panel, std::int64_t first, std::int64_t rows,
                                      float* sums) {
    const Panel work{params, x + first * params.linear.in_features, rows, sums};
    if (rows <= kRowBlock) return work.few(panel);
    if (rows <= kHalfRows) return work.half(panel);
    work.many(panel);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
