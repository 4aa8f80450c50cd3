#include <trtspec/moe.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "moe_kernel.hpp"
#include "scratch.hpp"

namespace trtspec {

namespace {

// Entries of `chosen` by expert, in their order: those of expert e from starts[e] on. Experts of
// other ranks are left out.
struct Groups {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> entries;

  explicit Groups(const MoeParams& params)
      : starts(params.num_experts + 1), entries(params.rows * params.top_k) {
    const std::int64_t count = params.rows * params.top_k;
    for (std::int64_t i = 0; i < count; ++i) {
      if (params.chosen[i] >= 0) ++starts[params.chosen[i] + 1];
    }
    for (std::int64_t e = 0; e < params.num_experts; ++e) starts[e + 1] += starts[e];
    std::vector<std::int64_t> next(starts.begin(), starts.end() - 1);
    for (std::int64_t i = 0; i < count; ++i) {
      if (params.chosen[i] >= 0) entries[next[params.chosen[i]]++] = i;
    }
  }

  std::int64_t size(std::int64_t expert) const { return starts[expert + 1] - starts[expert]; }
};

template <class Value>
const Value* behind(const Value* first, std::int64_t bytes) {
  if (first == nullptr) return nullptr;
  return reinterpret_cast<const Value*>(reinterpret_cast<const std::byte*>(first) + bytes);
}

const void* behind(const void* first, std::int64_t bytes) {
  return behind(static_cast<const std::byte*>(first), bytes);
}

void multiply(const ExpertLayers& layers, std::int64_t expert, const void* x, std::int64_t rows,
              void* out, DType out_dtype, Prologue prologue) {
  LinearQuantisedParams layer = layers.first;
  layer.linear.x = x;
  layer.linear.rows = rows;
  layer.linear.out = out;
  layer.linear.out_dtype = out_dtype;
  layer.linear.prologue = prologue;
  layer.linear.packed = behind(layer.linear.packed, expert * layers.packed_bytes);
  layer.linear.bias = behind(layer.linear.bias, expert * layers.bias_bytes);
  layer.scales = behind(layer.scales, expert * layers.scale_bytes);
  layer.offsets = behind(layer.offsets, expert * layers.scale_bytes);
  layer.zeros = behind(layer.zeros, expert * layers.zero_bytes);
  layer.table = behind(layer.table, expert * layers.table_bytes);
  switch (layers.kind) {
    case ExpertLayers::Kind::plain: return linear(layer.linear);
    case ExpertLayers::Kind::codes: return linear_quantised(layer);
  }
}

thread_local std::int64_t bytes_read = 0;

// Of one expert's layer.
std::int64_t bytes_of(const ExpertLayers& layers) {
  const bool has_offsets = layers.first.offsets != nullptr;
  return layers.packed_bytes + layers.scale_bytes * (1 + has_offsets) + layers.zero_bytes;
}

}  // namespace

std::int64_t expert_bytes_read() { return bytes_read; }

void moe(const MoeParams& params) {
  if (params.rows <= 0) return;
  const Groups groups(params);
  std::int64_t most = 0;
  for (std::int64_t e = 0; e < params.num_experts; ++e) most = std::max(most, groups.size(e));
  const std::int64_t size = static_cast<std::int64_t>(size_of(params.dtype));
  const std::int64_t row_bytes = params.hidden * size;
  const Scratch<std::byte> x = make_scratch<std::byte>(most * row_bytes);
  const Scratch<std::byte> inner = make_scratch<std::byte>(most * 2 * params.inner * size);
  const Scratch<std::byte> gated = make_scratch<std::byte>(most * params.inner * size);
  const Scratch<float> y = make_scratch<float>(most * params.hidden);
  const Scratch<float> sums = make_scratch<float>(params.rows * params.hidden);
  std::fill_n(sums.get(), params.rows * params.hidden, 0.0f);
  // The product itself takes this activation along.
  const bool in_product =
      params.activation == Activation::silu && params.limit == 0 && params.offset == 0;
  for (std::int64_t expert = 0; expert < params.num_experts; ++expert) {
    const std::int64_t count = groups.size(expert);
    if (count == 0) continue;
    bytes_read += bytes_of(params.up) + bytes_of(params.down);
    const std::int64_t* entries = groups.entries.data() + groups.starts[expert];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = entries[i] / params.top_k;
      std::memcpy(x.get() + i * row_bytes, behind(params.x, row * row_bytes), row_bytes);
    }
    multiply(params.up, expert, x.get(), count, inner.get(), params.dtype, Prologue::none);
    const std::byte* input = inner.get();
    if (!in_product) {
      TRTSPEC_DISPATCH(moe_activate_kernel, params, inner.get(), count, gated.get());
      input = gated.get();
    }
    multiply(params.down, expert, input, count, y.get(), DType::f32,
             in_product ? Prologue::swiglu : Prologue::none);
    TRTSPEC_DISPATCH(moe_add_kernel, params, y.get(), entries, count, sums.get());
  }
  TRTSPEC_DISPATCH(moe_finish_kernel, params, sums.get());
}

}  // namespace trtspec
