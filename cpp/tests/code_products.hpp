// A product by weights in codes and inputs of 8 or 16 bits, as kernels take it, for tests that
// compare two.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "linear_kernel.hpp"
#include "sample_values.hpp"

struct CodeCase {
  std::int64_t rows, depth, width, bits, group_size;
  enum Kind { plain, zeros, offsets, table } kind;
};

class CodeProduct {
 public:
  using Kernel = void (*)(const trtspec::LinearQuantisedParams&, const trtspec::CodeInputs&);

  explicit CodeProduct(const CodeCase& of, std::int64_t input_bits = 8) {
    constexpr std::int64_t kOutputs = trtspec::kCodeOutputs;
    const std::int64_t panels = (of.width + kOutputs - 1) / kOutputs;
    const std::int64_t groups =
        of.group_size > 0 ? (of.depth + of.group_size - 1) / of.group_size : 1;
    packed_.resize(size(panels * ((of.depth * of.bits + 31) / 32) * 64));
    for (std::size_t i = 0; i < packed_.size(); ++i) {
      packed_[i] = std::uint8_t(i * 2654435761u >> 9);
    }
    const std::size_t scaled = size(panels * groups * kOutputs);
    scales_.resize(scaled);
    minima_.resize(scaled);
    points_.resize(scaled);
    for (std::size_t i = 0; i < scaled; ++i) {
      scales_[i] = 0.01f * value(i + 9);
      minima_[i] = value(i + 4);
      points_[i] = std::int8_t(i % 13);
    }
    values_.resize(16);
    for (std::size_t i = 0; i < 16; ++i) values_[i] = std::int8_t(17 * i);
    x_.resize(size(of.rows * of.depth));
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = value(i);

    params_.linear.x = x_.data();
    params_.linear.packed = packed_.data();
    params_.linear.rows = of.rows;
    params_.linear.in_features = of.depth;
    params_.linear.out_features = of.width;
    params_.linear.dtype = params_.linear.out_dtype = params_.scale_dtype = trtspec::DType::f32;
    params_.scales = scales_.data();
    params_.offsets = of.kind == CodeCase::offsets ? minima_.data() : nullptr;
    params_.zeros = of.kind == CodeCase::zeros ? points_.data() : nullptr;
    params_.table = of.kind == CodeCase::table ? values_.data() : nullptr;
    params_.bits = of.bits;
    params_.group_size = of.group_size;
    params_.input_bits = input_bits;
  }

  // The outputs by a kernel, whose inputs another one makes in blocks of so many rows at most.
  std::vector<float> run(Kernel make_inputs, std::int64_t block_rows, Kernel multiply) {
    const std::int64_t rows = params_.linear.rows, depth = params_.linear.in_features;
    const std::int64_t group = params_.group_size;
    trtspec::CodeInputs inputs{};
    inputs.size = group == 0 || group > 128 ? 128 : group;
    inputs.groups = (depth + inputs.size - 1) / inputs.size;
    inputs.stride = (depth + 63) / 64 * 64 + 64;
    inputs.blocks = (rows + block_rows - 1) / block_rows;
    std::vector<std::int8_t> codes(size((rows + 15) * inputs.stride * input_bytes(params_)));
    std::vector<float> factors(size(rows * inputs.groups)), sums(factors.size());
    std::vector<std::int32_t> centres(factors.size());
    inputs.x = codes.data();
    inputs.scales = factors.data();
    inputs.sums = sums.data();
    inputs.centres = centres.data();
    make_inputs(params_, inputs);
    std::vector<float> out(size(rows * params_.linear.out_features));
    params_.linear.out = out.data();
    multiply(params_, inputs);
    return out;
  }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::vector<std::uint8_t> packed_;
  std::vector<float> scales_, minima_, x_;
  std::vector<std::int8_t> points_, values_;
  trtspec::LinearQuantisedParams params_{};
};

// The same bits, which are no zeros.
inline void check_same(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  CHECK(std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0);
  float largest = 0;
  for (const float each : a) largest = std::max(largest, std::abs(each));
  CHECK(largest > 0.01f);
}
