// linear against plain loops, on every instruction set of this processor.
#include <trtspec/isa.hpp>
#include <trtspec/linear.hpp>

#include <cmath>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "sample_values.hpp"

namespace {

using trtspec::Isa;

std::vector<float> multiply(const std::vector<float>& x, const std::vector<float>& packed,
                            const std::vector<float>& bias, std::int64_t rows, std::int64_t depth) {
  const auto width = std::int64_t(bias.size());
  std::vector<float> out(std::size_t(rows * width));
  trtspec::linear({.x = x.data(),
                   .packed = packed.data(),
                   .bias = bias.data(),
                   .out = out.data(),
                   .rows = rows,
                   .in_features = depth,
                   .out_features = width,
                   .dtype = trtspec::DType::f32,
                   .out_dtype = trtspec::DType::f32});
  return out;
}

void check_size(std::int64_t rows, std::int64_t depth, std::int64_t width) {
  const std::int64_t panels = (width + trtspec::kPanel - 1) / trtspec::kPanel;
  std::vector<float> x(std::size_t(rows * depth));
  std::vector<float> packed(std::size_t(panels * depth * trtspec::kPanel));
  std::vector<float> bias(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(i);
  for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = value(i + 77);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = value(i + 5);
  const std::vector<float> got = multiply(x, packed, bias, rows, depth);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < width; ++n) {
      double want = bias[std::size_t(n)];
      for (std::int64_t k = 0; k < depth; ++k) {
        const std::int64_t at = (n / trtspec::kPanel * depth + k) * trtspec::kPanel;
        want += double(x[std::size_t(r * depth + k)]) *
                double(packed[std::size_t(at + n % trtspec::kPanel)]);
      }
      CHECK_NEAR(got[std::size_t(r * width + n)], want, 1e-4);
    }
    // The bits of a row computed alone.
    const std::vector<float> row(x.begin() + r * depth, x.begin() + (r + 1) * depth);
    const std::vector<float> alone = multiply(row, packed, bias, 1, depth);
    CHECK(std::memcmp(alone.data(), got.data() + r * width, sizeof(float) * bias.size()) == 0);
  }
}

// What stands around a product, against plain loops, with a matrix that copies its inputs.
void check_around(std::int64_t rows, std::int64_t size) {
  const std::int64_t panels = (size + trtspec::kPanel - 1) / trtspec::kPanel;
  std::vector<float> packed(std::size_t(panels * size * trtspec::kPanel));
  for (std::int64_t n = 0; n < size; ++n) {
    const std::int64_t panel = n / trtspec::kPanel;
    packed[std::size_t((panel * size + n) * trtspec::kPanel + n % trtspec::kPanel)] = 1;
  }
  std::vector<float> x(std::size_t(2 * rows * size)), norm(static_cast<std::size_t>(size));
  std::vector<float> residual(std::size_t(rows * size)), out(residual.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3 * value(i);
  for (std::size_t i = 0; i < norm.size(); ++i) norm[i] = value(i + 3);
  for (std::size_t i = 0; i < residual.size(); ++i) residual[i] = value(i + 8);
  trtspec::LinearParams params{.x = x.data(),
                               .packed = packed.data(),
                               .bias = nullptr,
                               .out = out.data(),
                               .rows = rows,
                               .in_features = size,
                               .out_features = size,
                               .dtype = trtspec::DType::f32,
                               .out_dtype = trtspec::DType::f32,
                               .prologue = trtspec::Prologue::swiglu,
                               .residual = residual.data()};
  trtspec::linear(params);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < size; ++k) {
      const double gate = x[std::size_t(2 * r * size + k)];
      const double up = x[std::size_t((2 * r + 1) * size + k)];
      const auto at = std::size_t(r * size + k);
      CHECK_NEAR(out[at], residual[at] + gate / (1 + std::exp(-gate)) * up, 1e-5);
    }
  }
  params.prologue = trtspec::Prologue::rms_norm;
  params.norm = norm.data();
  params.eps = 0.5f;
  params.residual = nullptr;
  trtspec::linear(params);
  for (std::int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (std::int64_t k = 0; k < size; ++k) {
      squares += double(x[std::size_t(r * size + k)]) * double(x[std::size_t(r * size + k)]);
    }
    const double factor = 1 / std::sqrt(squares / double(size) + 0.5);
    for (std::int64_t k = 0; k < size; ++k) {
      const auto at = std::size_t(r * size + k);
      CHECK_NEAR(out[at], double(norm[std::size_t(k)]) * factor * double(x[at]), 1e-5);
    }
  }
}

}  // namespace

int main() {
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa > trtspec::detected_isa()) continue;
    trtspec::set_isa(isa);
    CHECK(trtspec::active_isa() == isa);
    check_size(1, 300, 130);
    check_size(9, 129, 64);
    check_size(50, 33, 7);
    check_around(1, 130);
    check_around(40, 333);
  }
  return check_result();
}
