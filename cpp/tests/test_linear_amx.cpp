// The kernels for AMX against plain loops; where the processor has none, on the emulator of its
// instructions.
#include <trtspec/linear.hpp>

#include <cmath>
#include <cstring>
#include <vector>

#include "amx_emulator.hpp"
#include "check.hpp"
#include "linear_kernel.hpp"
#include "sample_values.hpp"

namespace {

using trtspec::bf16;
using trtspec::kPanel;

std::size_t panels_of(std::int64_t width) { return std::size_t((width + kPanel - 1) / kPanel); }

// A linear layer with bfloat16 or int8 weights: those that groups of inputs scale, 0: all together.
struct Layer {
  std::int64_t depth, width, group_size;
  bool is_int8;
  std::vector<bf16> wide_weights, bias;
  std::vector<std::int8_t> bytes;
  std::vector<float> scales;

  Layer(std::int64_t k, std::int64_t n, bool int8, std::int64_t group = 0)
      : depth(k), width(n), group_size(group), is_int8(int8) {
    const std::size_t count = panels_of(n) * std::size_t(k * kPanel);
    if (int8) {
      bytes.resize(count);
      for (std::size_t i = 0; i < count; ++i) bytes[i] = std::int8_t(i * 2654435761u >> 7);
      scales.resize(panels_of(n) * std::size_t(groups() * kPanel));
      for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f + 0.01f * value(i + 9);
    } else {
      wide_weights.resize(count);
      for (std::size_t i = 0; i < count; ++i) wide_weights[i] = rounded(value(i + 77));
    }
    for (std::int64_t i = 0; i < n; ++i) bias.push_back(rounded(value(std::size_t(i + 5))));
  }

  std::int64_t groups() const {
    return group_size == 0 ? 1 : (depth + group_size - 1) / group_size;
  }

  double at(std::int64_t n, std::int64_t k) const {
    const std::int64_t panel = n / kPanel, column = n % kPanel;
    if (!is_int8) {  // in pairs
      const std::int64_t pair = (panel * depth + k / 2 * 2) * kPanel;
      return wide(wide_weights[std::size_t(pair + 2 * column + k % 2)]);
    }
    const auto place = std::size_t((panel * depth + k) * kPanel + column);
    const std::int64_t group = group_size == 0 ? 0 : k / group_size;
    return double(scales[std::size_t((panel * groups() + group) * kPanel + column)]) * bytes[place];
  }

  std::vector<float> multiply(const bf16* x, std::int64_t rows) const {
    std::vector<float> out(std::size_t(rows * width));
    constexpr std::int64_t kBlock = trtspec::amx::kInputBlock;
    std::vector<bf16> blocks(std::size_t(rows * depth));
    for (std::int64_t i = 0; i < rows * depth; ++i) {
      const std::int64_t row = i / depth, k = i % depth;
      blocks[std::size_t((k / kBlock * rows + row) * kBlock + k % kBlock)] = x[i];
    }
    const trtspec::LinearParams params{.x = blocks.data(),
                                       .packed = is_int8 ? static_cast<const void*>(bytes.data())
                                                         : wide_weights.data(),
                                       .bias = bias.data(),
                                       .out = out.data(),
                                       .rows = rows,
                                       .in_features = depth,
                                       .out_features = width,
                                       .dtype = trtspec::DType::bf16,
                                       .out_dtype = trtspec::DType::f32};
    if (is_int8) {
      trtspec::amx::linear_int8_amx(
          {.linear = params, .scales = scales.data(), .group_size = group_size});
    } else {
      trtspec::amx::linear_amx(params);
    }
    return out;
  }
};

void check_layer(const Layer& layer, std::int64_t rows) {
  std::vector<bf16> x(std::size_t(rows * layer.depth));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = rounded(value(i));
  const std::vector<float> got = layer.multiply(x.data(), rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* const row = x.data() + r * layer.depth;
    for (std::int64_t n = 0; n < layer.width; ++n) {
      double want = wide(layer.bias[std::size_t(n)]);
      for (std::int64_t k = 0; k < layer.depth; ++k) want += wide(row[k]) * layer.at(n, k);
      CHECK_NEAR(got[std::size_t(r * layer.width + n)], want, 2e-4);
    }
    // The bits of a row computed alone.
    const std::vector<float> alone = layer.multiply(row, 1);
    CHECK(std::memcmp(alone.data(), got.data() + r * layer.width,
                      sizeof(float) * std::size_t(layer.width)) == 0);
  }
}

}  // namespace

int main() {
  if (!amx_emulator::can_run_kernels()) return 0;
  // One tile of rows, two, and many; steps that the inputs fill, and that they do not; outputs that
  // are no multiple of a panel; by one thread, and by more.
  for (const std::int64_t rows : {1, 5, 16, 17, 32, 33, 50}) {
    check_layer(Layer(32, 7, false), rows);
    check_layer(Layer(288, 130, false), rows);
    check_layer(Layer(1056, 200, false), rows);
    for (const std::int64_t group : {0, 32, 64, 128}) {
      check_layer(Layer(160, 70, true, group), rows);
    }
  }
  check_layer(Layer(256, 64, false), 200);
  check_layer(Layer(1024, 520, true, 64), 18);
  return check_result();
}
