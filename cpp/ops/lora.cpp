#include <trtspec/lora.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "linear_kernel.hpp"
#include "lora_kernel.hpp"
#include "scratch.hpp"

namespace trtspec {

namespace {

// Rows that have an adapter, those of one behind each other and in their order.
std::vector<std::int64_t> gathered(const LoraParams& params) {
  std::vector<std::int64_t> places;
  for (std::int64_t row = 0; row < params.linear.rows; ++row) {
    if (params.index[row] >= 0) places.push_back(row);
  }
  std::ranges::stable_sort(places, {}, [&](std::int64_t row) { return params.index[row]; });
  return places;
}

std::vector<LoraRows> blocks_of(const LoraParams& params, std::span<const std::int64_t> places) {
  std::vector<LoraRows> blocks;
  for (std::int64_t i = 0; i < std::ssize(places); ++i) {
    const std::int64_t adapter = params.index[places[std::size_t(i)]];
    if (blocks.empty() || blocks.back().adapter != adapter || blocks.back().count == kLoraRows) {
      blocks.push_back({adapter, i, 0});
    }
    ++blocks.back().count;
  }
  return blocks;
}

std::vector<LoraOutputs> outputs_of(const LoraParams& params) {
  std::vector<LoraOutputs> outputs;
  std::int64_t begin = 0;
  for (std::int64_t part = 0; part < params.num_parts; ++part) {
    const std::int64_t size = params.parts[part];
    for (std::int64_t done = 0; done < size; done += kLoraOutputs) {
      outputs.push_back({part, begin + done, std::min(kLoraOutputs, size - done)});
    }
    begin += size;
  }
  return outputs;
}

// out = residual, or zero.
void begin_with_residual(const LinearParams& linear) {
  const std::size_t size =
      std::size_t(linear.rows * linear.out_features) * std::size_t(size_of(linear.out_dtype));
  if (linear.residual == nullptr) {
    std::memset(linear.out, 0, size);
  } else {
    std::memcpy(linear.out, linear.residual, size);
  }
}

}  // namespace

void lora(const LoraParams& params) {
  const LinearParams& given = params.linear;
  if (given.rows <= 0 || given.out_features <= 0) return;
  begin_with_residual(given);
  const std::vector<std::int64_t> places = gathered(params);
  if (places.empty()) return;
  const std::vector<LoraRows> rows = blocks_of(params, places);
  const std::vector<LoraOutputs> outputs = outputs_of(params);

  const std::int64_t count = std::ssize(places), depth = given.in_features;
  const std::int64_t size = std::int64_t(size_of(given.dtype));
  const std::int64_t width = (given.prologue == Prologue::swiglu ? 2 : 1) * depth * size;
  const Scratch<std::byte> own = make_scratch<std::byte>(count * width);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(given.x) + places[std::size_t(i)] * width;
    std::memcpy(own.get() + i * width, from, std::size_t(width));
  }
  LinearParams made = given;
  made.x = own.get();
  made.rows = count;
  const Scratch<std::byte> normed = make_scratch<std::byte>(count * depth * size);
  if (made.prologue != Prologue::none) {
    TRTSPEC_DISPATCH(linear_prologue_kernel, made, normed.get(), depth);
    made.x = normed.get();
  }
  // A stride that is no multiple of a page keeps the rows of a block in different cache sets.
  const std::int64_t stride = depth + 16;
  const Scratch<float> x = make_scratch<float>(count * stride);
  TRTSPEC_DISPATCH(linear_convert_kernel, made, x.get(), stride);

  const std::int64_t wide = params.num_parts * params.rank;
  const std::int64_t inner_stride = (wide + kLoraInner - 1) / kLoraInner * kLoraInner;
  const Scratch<float> inner = make_scratch<float>(count * inner_stride);
  const LoraTasks tasks{.rows = rows.data(),
                        .num_rows = std::ssize(rows),
                        .outputs = outputs.data(),
                        .num_outputs = std::ssize(outputs),
                        .places = places.data(),
                        .x = x.get(),
                        .x_stride = stride,
                        .inner = inner.get(),
                        .inner_stride = inner_stride};
  TRTSPEC_DISPATCH(lora_kernel, params, tasks);
}

}  // namespace trtspec
