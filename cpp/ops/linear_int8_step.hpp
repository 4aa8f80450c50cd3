// What the kernels of linear_int8 share: panels whose weights are bytes. Only for kernel sources.
#pragma once
#include <trtspec/linear.hpp>

#include "gemm_block.hpp"
#include "linear_panels.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr std::int64_t kInt8Step = 128;  // input features of a step, a multiple of every group
constexpr std::int64_t kSmallestGroup = 32;

// sums [rows][columns] = scales * part, plus what is there unless `fresh`; rows are kPanel apart.
inline void add_scaled(std::int64_t rows, const float* part, const float* scales, float* sums,
                       bool fresh) {
  for (std::int64_t r = 0; r < rows; ++r, part += kPanel, sums += kPanel) {
    for (int c = 0; c < kPanel; c += kLanes) {
      const VF scale = load(scales + c), group = load(part + c);
      store(sums + c, fresh ? scale * group : fma(scale, group, load(sums + c)));
    }
  }
}

// product(offset, depth, sums, fresh) for the groups of a step of n input features from k on, each
// of them `offset` behind k and `depth` long, so that sums [rows][64] become those of the panel.
// Where all features share a scale, it multiplies at the panel's end. scales: of the step's groups.
template <class Product>
TRTSPEC_INLINE void for_groups(const LinearInt8Params& params, const float* scales, std::int64_t k,
                               std::int64_t n, std::int64_t rows, float* part, float* sums,
                               const Product& product) {
  const std::int64_t size = params.group_size;
  if (size == 0) {
    product(0, n, sums, k == 0);
    if (k + n == params.linear.in_features) add_scaled(rows, sums, scales, sums, true);
    return;
  }
  for (std::int64_t offset = 0; offset < n; offset += size) {
    product(offset, n - offset < size ? n - offset : size, part, true);
    add_scaled(rows, part, scales + offset / size * kPanel, sums, k + offset == 0);
  }
}

// step(k, n, weights, scales, ahead) for every step of a panel, with what is to be prefetched
// meanwhile: the weights of the next step, at the end those of panel `next`, `Lines` cache lines in
// each of `passes` rounds over them.
template <int Lines, class Step>
TRTSPEC_INLINE void for_steps(const LinearInt8Params& params, std::int64_t panel,
                              std::int64_t next, std::int64_t passes, const Step& step) {
  const std::int64_t depth = params.linear.in_features;
  const std::int64_t size = params.group_size > 0 ? params.group_size : depth;
  const auto* weights = static_cast<const std::int8_t*>(params.linear.packed);
  const std::int8_t* w = weights + panel * depth * kPanel;
  const float* scales = params.scales + panel * ((depth + size - 1) / size) * kPanel;
  for (std::int64_t k = 0; k < depth; k += kInt8Step) {
    const std::int64_t n = depth - k < kInt8Step ? depth - k : kInt8Step;
    const std::int8_t* part = w + k * kPanel;
    StreamAhead<Lines> ahead{weights_behind(weights, kPanel, depth, panel, next, k + n),
                             Lines * kPanel / passes};
    step(k, n, part, scales + k / size * kPanel, ahead);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
