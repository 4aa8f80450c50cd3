// tree_mask: packed ancestors and context lengths become the mask of an engine with a slot cache.
#include <kernels.hpp>

#include "attention.cuh"
#include "launch.hpp"

namespace trtspec::cuda {
namespace {

constexpr unsigned kThreads = 256;

// The bits that say seen and hidden.
template <class Element>
struct MaskValues {
  Element seen;
  Element hidden;
};

// One block a row of `out`: blockIdx.x = request * width + row.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    fill_mask(const __grid_constant__ TreeMaskParams m, MaskValues<Element> values) {
  const int b = static_cast<int>(blockIdx.x / m.width);
  const int index = static_cast<int>(blockIdx.x % m.width);
  const int first = m.query_start[b];
  const int t = first + index;
  RowView view{0, 0, 0, nullptr};
  int limit = 0;
  if (t < m.query_start[b + 1] && (m.slot_mapping == nullptr || m.slot_mapping[t] >= 0)) {
    const int context = m.context_lens[b];
    view.context = context;
    view.end = m.is_tree[b] ? context : context + index + 1;
    limit = view.end;
    if (m.is_tree[b]) {
      view.mask = m.tree_mask + t * m.mask_words;
      limit += static_cast<int>(m.mask_words) * 64;
    }
    if (m.sliding_window > 0) {
      const std::int64_t from = larger<std::int64_t>(m.positions[t] - m.sliding_window + 1, 0);
      view.begin = static_cast<int>(smaller<std::int64_t>(from, view.end));
    }
  }
  bool any = view.begin < view.end;
  for (int w = 0; view.mask != nullptr && w < m.mask_words; ++w) any = any || view.mask[w] != 0;
  Element* const out = static_cast<Element*>(m.out) + std::int64_t{blockIdx.x} * m.length;
  for (int position = threadIdx.x; position < m.length; position += kThreads) {
    const bool seen = any ? sees(view, position, limit) : position == 0;
    out[position] = seen ? values.seen : values.hidden;
  }
}

template <class Element>
cudaError_t fill(const TreeMaskParams& m, MaskValues<Element> values, cudaStream_t stream) {
  return launch(fill_mask<Element>, static_cast<unsigned>(m.requests * m.width), kThreads, 0,
                stream, m, values);
}

}  // namespace

cudaError_t tree_mask(const TreeMaskParams& m, cudaStream_t stream) {
  if (m.requests * m.width * m.length <= 0) return cudaSuccess;
  switch (m.kind) {
    case MaskKind::boolean: return fill<std::uint8_t>(m, {1, 0}, stream);
    case MaskKind::f32: return fill<std::uint32_t>(m, {0, 0xff800000u}, stream);
    case MaskKind::bf16: return fill<std::uint16_t>(m, {0, 0xff80}, stream);
    case MaskKind::f16: return fill<std::uint16_t>(m, {0, 0xfc00}, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
