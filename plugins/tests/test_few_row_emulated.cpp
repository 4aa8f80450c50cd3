// few_row_linear in the emulator against sums in double; and a row's bits, whatever the other rows.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <ptx.hpp>

#include "check.hpp"
#include "seeds.hpp"

namespace {

using namespace trtspec::cuda;
using trtspec::bf16, trtspec::DType, trtspec::f16;

constexpr int kRows = 64;

struct Parts {
  bool zeros = false;
  bool offsets = false;
  bool around = false;  // bias and residual
  bool swiglu = false;
};

struct Sizes {
  WeightValues values;
  DType dtype;
  DType out_dtype;
  int outputs;
  int inputs;
  int group = 0;
  DType scale_dtype = DType::f32;
  Parts with = {};
};

// Floats of a dtype, as bytes.
class Floats {
 public:
  Floats(DType dtype, std::size_t count) : dtype_(dtype), bytes_(count * size_of(dtype)) {}

  void set(std::size_t i, double value) {
    const auto narrow = static_cast<float>(value);
    if (dtype_ == DType::f32) return put<float>(i, narrow);
    dtype_ == DType::bf16 ? put<bf16>(i, narrow) : put<f16>(i, narrow);
  }
  double get(std::size_t i) const {
    if (dtype_ == DType::f32) return at<float>(i);
    return dtype_ == DType::bf16 ? to_float(at<bf16>(i)) : to_float(at<f16>(i));
  }
  unsigned char* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size() / size_of(dtype_); }

 private:
  template <class T>
  T at(std::size_t i) const {
    return reinterpret_cast<const T*>(bytes_.data())[i];
  }
  template <class T>
  void put(std::size_t i, float value) {
    from_float(value, reinterpret_cast<T*>(bytes_.data())[i]);
  }

  DType dtype_;
  std::vector<unsigned char> bytes_;
};

double value_of(WeightValues values, int bits) {
  if (values == WeightValues::int8) return std::int8_t(bits);
  if (values == WeightValues::int4) return bits - 8;
  const bool e4m3 = values == WeightValues::e4m3;
  const int mantissa = e4m3 ? 3 : 1, sign = e4m3 ? 0x80 : 8;
  const int exponent = (bits & (sign - 1)) >> mantissa, low = bits & ((1 << mantissa) - 1);
  const double whole = exponent == 0 ? low : low + (1 << mantissa);
  const double size = std::ldexp(whole, std::max(exponent, 1) - mantissa - (e4m3 ? 7 : 0));
  return bits & sign ? -size : size;  // FP4 doubled
}

struct Case {
  Sizes sizes;
  int groups, tiles, stages, width;
  Floats x, scales, offsets, bias, residual;
  std::vector<double> weights;  // [outputs, inputs]
  Floats rows;
  std::vector<unsigned char> packed;
  std::vector<std::int8_t> zeros;

  Case(const Sizes& s, unsigned seed)
      : sizes(s),
        groups(s.group == 0 ? 1 : (s.inputs + s.group - 1) / s.group),
        tiles((s.outputs + 15) / 16),
        stages((s.inputs + 63) / 64),
        width(s.with.swiglu ? s.outputs / 2 : s.outputs),
        x(s.dtype, std::size_t(kRows * s.inputs)),
        scales(s.scale_dtype, std::size_t(tiles * groups * 16)),
        offsets(s.scale_dtype, scales.size()),
        bias(s.dtype, std::size_t(s.outputs)),
        residual(s.out_dtype, std::size_t(kRows * width)),
        weights(std::size_t(s.outputs * s.inputs)),
        rows(s.dtype, weights.size()),
        packed(std::size_t(tiles * stages) * (is_four() ? 512 : 1024)),
        zeros(scales.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (Floats* const each : {&x, &bias, &residual}) {
      for (std::size_t i = 0; i < each->size(); ++i) each->set(i, normal(random));
    }
    const double size = 1 / std::sqrt(double(s.inputs)) /
                        (s.values == WeightValues::e4m3   ? 100
                         : s.values == WeightValues::int8 ? 70
                                                          : 5);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales.set(i, size * (0.5 + std::fabs(normal(random))));
      offsets.set(i, size * normal(random));
      zeros[i] = static_cast<std::int8_t>(random() % 17 - 8);
    }
    for (int n = 0; n < s.outputs; ++n) {
      for (int k = 0; k < s.inputs; ++k) {
        double& weight = weights[std::size_t(n * s.inputs + k)];
        if (s.values == WeightValues::rows) {
          rows.set(std::size_t(n * s.inputs + k), normal(random) / std::sqrt(double(s.inputs)));
          weight = rows.get(std::size_t(n * s.inputs + k));
          continue;
        }
        int bits = static_cast<int>(random() & (is_four() ? 15 : 255));
        if (s.values == WeightValues::e4m3 && (bits & 127) == 127) bits = 0;  // no NaN
        put(n, k, bits);
        const auto at = std::size_t((n / 16 * groups + (s.group ? k / s.group : 0)) * 16 + n % 16);
        weight = (value_of(s.values, bits) - (s.with.zeros ? zeros[at] : 0)) * scales.get(at) +
                 (s.with.offsets ? offsets.get(at) : 0.0);
      }
    }
  }

  bool is_four() const {
    return sizes.values == WeightValues::int4 || sizes.values == WeightValues::e2m1;
  }

  // Where mma.m16n8k16 has output n and input k: register i of a lane, lower or upper half.
  void put(int n, int k, int bits) {
    const int lane = n % 8 * 4 + k % 8 / 2, i = n % 16 / 8 + k % 16 / 8 * 2, half = k % 2;
    const int step = k % 64 / 16, block = n / 16 * stages + k / 64;
    if (is_four()) {
      packed[std::size_t((block * 32 + lane) * 16 + step * 4 + half * 2 + i / 2)] |=
          static_cast<unsigned char>(bits << (i % 2 * 4));
    } else {
      packed[std::size_t(((block * 2 + step / 2) * 32 + lane) * 16 + step % 2 * 8 + i / 2 * 4 +
                         half * 2 + i % 2)] = static_cast<unsigned char>(bits);
    }
  }

  FewRowParams params() {
    FewRowParams p{};
    p.weight = sizes.values == WeightValues::rows ? rows.data() : packed.data();
    p.scales = scales.data();
    p.zeros = sizes.with.zeros ? zeros.data() : nullptr;
    p.offsets = sizes.with.offsets ? offsets.data() : nullptr;
    p.bias = sizes.with.around ? bias.data() : nullptr;
    p.in_features = sizes.inputs;
    p.out_features = sizes.outputs;
    p.group_size = sizes.group;
    p.values = sizes.values;
    p.dtype = sizes.dtype;
    p.out_dtype = sizes.out_dtype;
    p.scale_dtype = sizes.scale_dtype;
    p.swiglu = sizes.with.swiglu;
    return p;
  }

  // The outputs of rows first .. first + count - 1, as bytes.
  std::vector<unsigned char> run(int first, int count) {
    const std::size_t row_bytes = std::size_t(width) * size_of(sizes.out_dtype);
    std::vector<unsigned char> out(std::size_t(count) * row_bytes);
    FewRowParams p = params();
    p.x = x.data() + std::size_t(first * sizes.inputs) * size_of(sizes.dtype);
    p.residual = sizes.with.around ? residual.data() + std::size_t(first) * row_bytes : nullptr;
    p.out = out.data();
    p.rows = count;
    std::vector<float> workspace(few_row_linear_workspace(p) / sizeof(float) + 4, NAN);
    CHECK_EQ(few_row_linear(p, workspace.data(), nullptr), cudaSuccess);
    return out;
  }

  // Rounds the weights as few_row_dequantise does.
  bool dequantises() {
    Floats found(sizes.dtype, weights.size()), expected(sizes.dtype, weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) expected.set(i, weights[i]);
    FewRowParams p = params();
    p.out = found.data();
    CHECK_EQ(few_row_dequantise(p, nullptr), cudaSuccess);
    const double step = sizes.dtype == DType::bf16 ? 0.004 : 0.0005;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!(std::fabs(found.get(i) - expected.get(i)) <=
            step * std::fabs(expected.get(i)) + 1e-7)) {
        return false;
      }
    }
    return true;
  }

  double sum(int row, int output) const {
    double total = sizes.with.around ? bias.get(std::size_t(output)) : 0.0;
    for (int k = 0; k < sizes.inputs; ++k) {
      total += x.get(std::size_t(row * sizes.inputs + k)) *
               weights[std::size_t(output * sizes.inputs + k)];
    }
    return total;
  }

  double expected(int row, int output) const {
    const double gate = sizes.with.swiglu ? sum(row, output / 16 * 32 + output % 16) : 0.0;
    const double value = sizes.with.swiglu ? gate / (1 + std::exp(-gate)) *
                                                 sum(row, output / 16 * 32 + 16 + output % 16)
                                           : sum(row, output);
    return value + (sizes.with.around ? residual.get(std::size_t(row * width + output)) : 0.0);
  }
};

void check(const Sizes& sizes, unsigned seed) {
  Case given(sizes, seed);
  const std::vector<unsigned char> all = given.run(0, kRows);
  Floats out(sizes.out_dtype, std::size_t(kRows * given.width));
  std::memcpy(out.data(), all.data(), all.size());
  const double tolerance = sizes.out_dtype == DType::f32   ? 5e-6
                           : sizes.out_dtype == DType::f16 ? 3e-3
                                                           : 2e-2;
  double worst = 0.0;
  for (int row = 0; row < kRows; ++row) {
    for (int output = 0; output < given.width; ++output) {
      const double expected = given.expected(row, output);
      const double off = std::fabs(out.get(std::size_t(row * given.width + output)) - expected);
      const double relative = off / std::max(1.0, std::fabs(expected));
      worst = std::isnan(off) ? HUGE_VAL : std::max(worst, relative);
    }
  }
  if (worst > tolerance) {
    ++failed_checks();
    std::printf("values %d, dtypes %d %d, [%d, %d], groups of %d: off by %g\n", int(sizes.values),
                int(sizes.dtype), int(sizes.out_dtype), sizes.outputs, sizes.inputs, sizes.group,
                worst);
  }
  if (sizes.values != WeightValues::rows) CHECK(given.dequantises());
  const std::size_t row_bytes = all.size() / kRows;
  for (const auto& [first, count] : {std::pair{5, 1}, {40, 7}, {0, 8}, {50, 13}, {7, 30}}) {
    const std::vector<unsigned char> some = given.run(first, count);
    CHECK(std::equal(some.begin(), some.end(), all.begin() + std::ptrdiff_t(first * row_bytes)));
  }
}

// Sizes that the kernels do not take.
void check_limits() {
  FewRowParams p{};
  p.rows = 1, p.in_features = 64, p.out_features = 32, p.dtype = DType::bf16;
  const auto refused = [&](auto change) {
    FewRowParams other = p;
    change(other);
    return few_row_linear(other, nullptr, nullptr) == cudaErrorInvalidValue;
  };
  CHECK(refused([](FewRowParams& other) { other.rows = kFewRows + 1; }));
  CHECK(refused([](FewRowParams& other) { other.in_features = 68; }));
  CHECK(refused([](FewRowParams& other) { other.group_size = 48; }));
  CHECK(refused([](FewRowParams& other) { other.dtype = DType::f32; }));
  CHECK(refused([](FewRowParams& other) { other.swiglu = true, other.out_features = 48; }));
  CHECK(!refused([](FewRowParams& other) { other.rows = 0; }));
}

}  // namespace

int main() {
  check_limits();
  using enum WeightValues;
  constexpr DType f32 = DType::f32, b16 = DType::bf16, h16 = DType::f16;
  for_seeds([&](unsigned seed) {
    // A tile of outputs without its neighbour, inputs that fill no stage; several splits and one.
    check({rows, b16, f32, 168, 72, 0, f32, {.around = true}}, seed);
    check({rows, h16, h16, 40, 1040}, seed);
  });
  // Scales of groups in all sizes, behind which a split ends, and of whole outputs.
  check({int4, b16, f32, 144, 200, 32, h16, {.zeros = true, .around = true}}, 1);
  check({int4, h16, f32, 48, 1064, 128, b16, {.offsets = true}}, 2);
  check({int4, b16, b16, 64, 576, 64, f32, {.around = true, .swiglu = true}}, 3);
  check({int8, b16, f32, 56, 1096, 0, f32, {.zeros = true}}, 4);
  check({int8, h16, f32, 40, 328, 256, h16, {.offsets = true}}, 5);
  check({e4m3, b16, f32, 48, 1024, 128, f32, {.around = true}}, 6);
  check({e4m3, h16, f32, 136, 136, 0, f32}, 7);
  check({e2m1, b16, f32, 48, 1072, 16, f32, {.around = true}}, 8);
  check({e2m1, h16, f32, 40, 264, 32, b16}, 9);
  check({rows, h16, f32, 96, 1024, 0, f32, {.around = true, .swiglu = true}}, 10);
  return check_result();
}
