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

// A linear layer with bfloat16 weights.
struct Layer {
  std::int64_t depth, width;
  std::vector<bf16> weights, bias;

  Layer(std::int64_t k, std::int64_t n) : depth(k), width(n) {
    weights.resize(panels_of(n) * std::size_t(k * kPanel));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = rounded(value(i + 77));
    for (std::int64_t i = 0; i < n; ++i) bias.push_back(rounded(value(std::size_t(i + 5))));
  }

  double at(std::int64_t n, std::int64_t k) const {
    const std::int64_t panel = n / kPanel, column = n % kPanel;
    const std::int64_t pair = (panel * depth + k / 2 * 2) * kPanel;
    return wide(weights[std::size_t(pair + 2 * column + k % 2)]);
  }

  std::vector<float> multiply(const bf16* x, std::int64_t rows) const {
    std::vector<float> out(std::size_t(rows * width));
    constexpr std::int64_t kBlock = trtspec::amx::kInputBlock;
    std::vector<bf16> blocks(std::size_t(rows * depth));
    for (std::int64_t i = 0; i < rows * depth; ++i) {
      const std::int64_t row = i / depth, k = i % depth;
      blocks[std::size_t((k / kBlock * rows + row) * kBlock + k % kBlock)] = x[i];
    }
    trtspec::amx::linear_amx({.x = blocks.data(),
                              .packed = weights.data(),
                              .bias = bias.data(),
                              .out = out.data(),
                              .rows = rows,
                              .in_features = depth,
                              .out_features = width,
                              .dtype = trtspec::DType::bf16,
                              .out_dtype = trtspec::DType::f32});
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
    check_layer(Layer(32, 7), rows);
    check_layer(Layer(288, 130), rows);
    check_layer(Layer(1056, 200), rows);
  }
  check_layer(Layer(256, 64), 200);
  check_layer(Layer(1024, 520), 18);
  return check_result();
}
