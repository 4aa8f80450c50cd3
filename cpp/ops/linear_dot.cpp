// The linear op in bfloat16 with the processor's dot product of pairs (AVX512_BF16): twice the
// multiply-adds of an instruction, and the inputs need no conversion.
#include "dot_block.hpp"
#include "linear_kernel.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

// So few rows are multiplied as fast as weights come from memory, one line after the other; then
// processors prefetch by themselves, and better than they can be told.
constexpr std::int64_t kFewRows = 4;

}  // namespace

void linear_dot(const LinearParams& params) {
  const std::int64_t depth = params.in_features;
  const bf16* weights = static_cast<const bf16*>(params.packed);
  constexpr int kRowBytes = int(kPanel * sizeof(bf16));
  constexpr std::int64_t kStep = kStepBytes / kRowBytes;
  run_bf16_panels(params, [&](std::int64_t panel, std::int64_t next, const bf16* x,
                              std::int64_t rows, float* sums) {
    const bf16* w = weights + panel * depth * kPanel;
    for (std::int64_t k = 0; k == 0 || k < depth; k += kStep) {
      const std::int64_t n = depth - k < kStep ? depth - k : kStep;
      const bf16* part = w + k * kPanel;
      const auto multiply = [&](auto ahead) {
        for_row_blocks(rows, [&](auto count, std::int64_t block) {
          dot_rows<decltype(count)::value, StoredPairs<kPanel / 16>>(
              n, x + block * depth + k, depth, part, sums + block * kPanel, k == 0, ahead);
        });
      };
      if (rows <= kFewRows) {
        multiply(NothingAhead{});
        continue;
      }
      // As in linear_kernel.cpp: meanwhile the next step's weights come from memory. A step of
      // this loop reads two rows of weights.
      multiply(StreamAhead<2 * kRowBytes / 64>{
          weights_behind(weights, kRowBytes, depth, panel, next, k + n),
          2 * kRowBytes / row_blocks(rows)});
    }
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
