// The linear op with int8 weights and bfloat16 inputs, with the processor's dot product of pairs
// (AVX512_BF16): a byte is exact in bfloat16, so the weights are converted, never rounded.
#include "byte_pairs.hpp"
#include "dot_block.hpp"
#include "linear_int8_step.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

// Pairs of 16 * Registers outputs, in their order, made of bytes.
template <int Registers>
struct BytePairs : SumsInOrder<Registers> {
  using Weight = std::int8_t;

  static TRTSPEC_INLINE void load(const std::int8_t* w, __m512bh* pairs) {
#pragma GCC unroll 4
    for (int i = 0; i < Registers; ++i) pairs[i] = (__m512bh)byte_pairs(w + 16 * i);
  }
};

// Rows of a block. Those of more than kRowBlock have room for half a panel in the registers, so
// that still no weight is converted twice for them.
constexpr std::int64_t kDotRows = 10;

// body(RowCount<count>) for 1 <= count <= kDotRows.
template <class Body, int Rows = 1>
TRTSPEC_INLINE void with_count(std::int64_t count, const Body& body) {
  if (count == Rows) return body(RowCount<Rows>{});
  if constexpr (Rows < kDotRows) with_count<Body, Rows + 1>(count, body);
}

// A whole panel for `Rows` rows.
template <int Rows, class Ahead>
TRTSPEC_INLINE void dot_panel(std::int64_t depth, const bf16* x, std::int64_t x_stride,
                              const std::int8_t* w, float* sums, bool fresh, Ahead& ahead) {
  constexpr int kRegisters = Rows <= kRowBlock ? 4 : 2;
  for (int first = 0; first < kPanel; first += 16 * kRegisters) {
    dot_rows<Rows, BytePairs<kRegisters>>(depth, x, x_stride, w + first, sums + first, fresh,
                                          ahead);
  }
}

void multiply_panel(const LinearInt8Params& params, std::int64_t panel, std::int64_t next,
                    const bf16* x, std::int64_t rows, float* sums) {
  const std::int64_t stride = params.linear.in_features;
  const std::int64_t blocks = (rows + kDotRows - 1) / kDotRows;
  const std::int64_t passes = rows > kRowBlock * blocks ? 2 * blocks : blocks;
  // A step of the loop inside reads two rows of weights.
  for_steps<2>(params, panel, next, passes, [&](std::int64_t k, std::int64_t n,
                                                const std::int8_t* w, const float* scales,
                                                auto& ahead) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t first = rows * b / blocks;  // blocks of nearly equal size
      with_count(rows * (b + 1) / blocks - first, [&](auto count) {
        constexpr int kRows = decltype(count)::value;
        alignas(64) float part[kRows * kPanel];
        for_groups(params, scales, k, n, kRows, part, sums + first * kPanel,
                   [&](std::int64_t offset, std::int64_t depth, float* to, bool fresh) {
                     dot_panel<kRows>(depth, x + first * stride + k + offset, stride,
                                      w + offset * kPanel, to, fresh, ahead);
                   });
      });
    }
  });
}

}  // namespace

void linear_int8_dot(const LinearInt8Params& params) {
  run_bf16_panels(params.linear, 1, [&](std::int64_t panel, std::int64_t next, const bf16* x,
                                        std::int64_t rows, float* sums) {
    multiply_panel(params, panel, next, x, rows, sums);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
