// The kernel for weights in codes by tiles of bytes: the bits of the one by vectors, which other
// tests compare with plain loops; where the processor has no AMX, on the emulator.
#include <trtspec/linear.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "amx_emulator.hpp"
#include "check.hpp"
#include "linear_kernel.hpp"
#include "sample_values.hpp"

namespace {

using trtspec::CodeInputs;
using trtspec::kCodeOutputs;
using trtspec::LinearQuantisedParams;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

struct Case {
  std::int64_t rows, depth, width, bits, group_size;
  enum Kind { plain, zeros, offsets, table } kind;
};

void check_case(const Case& of) {
  const std::int64_t panels = (of.width + kCodeOutputs - 1) / kCodeOutputs;
  const std::int64_t groups = of.group_size > 0 ? (of.depth + of.group_size - 1) / of.group_size : 1;
  std::vector<std::uint8_t> packed(size(panels * ((of.depth * of.bits + 31) / 32) * 64));
  for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = std::uint8_t(i * 2654435761u >> 9);
  const std::size_t scaled = size(panels * groups * kCodeOutputs);
  std::vector<float> scales(scaled), minima(scaled);
  std::vector<std::int8_t> points(scaled), values(16);
  for (std::size_t i = 0; i < scaled; ++i) {
    scales[i] = 0.01f * value(i + 9);
    minima[i] = value(i + 4);
    points[i] = std::int8_t(i % 13);
  }
  for (std::size_t i = 0; i < 16; ++i) values[i] = std::int8_t(17 * i);
  std::vector<float> x(size(of.rows * of.depth));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(i);
  std::vector<float> out[2];
  for (std::vector<float>& each : out) each.resize(size(of.rows * of.width));

  LinearQuantisedParams params{};
  params.linear.x = x.data();
  params.linear.packed = packed.data();
  params.linear.rows = of.rows;
  params.linear.in_features = of.depth;
  params.linear.out_features = of.width;
  params.linear.dtype = params.linear.out_dtype = params.scale_dtype = trtspec::DType::f32;
  params.scales = scales.data();
  params.offsets = of.kind == Case::offsets ? minima.data() : nullptr;
  params.zeros = of.kind == Case::zeros ? points.data() : nullptr;
  params.table = of.kind == Case::table ? values.data() : nullptr;
  params.bits = of.bits;
  params.group_size = of.group_size;
  params.rounds_inputs = true;

  CodeInputs inputs{};
  inputs.size = of.group_size == 0 || of.group_size > 128 ? 128 : of.group_size;
  inputs.groups = (of.depth + inputs.size - 1) / inputs.size;
  inputs.stride = (of.depth + 63) / 64 * 64 + 64;
  std::vector<std::int8_t> codes(size((of.rows + 15) * inputs.stride));
  std::vector<float> factors(size(of.rows * inputs.groups)), sums(factors.size());
  std::vector<std::int32_t> centres(factors.size());
  inputs.x = codes.data();
  inputs.scales = factors.data();
  inputs.sums = sums.data();
  inputs.centres = centres.data();

  const std::int64_t together = trtspec::code_rows(trtspec::Isa::avx512);
  inputs.blocks = (of.rows + together - 1) / together;
  trtspec::avx512::linear_code_inputs_kernel(params, inputs);
  params.linear.out = out[0].data();
  trtspec::avx512_bf16::linear_codes_dot(params, inputs);

  inputs.blocks = of.rows;  // tiles read rows one by one
  trtspec::avx512::linear_code_inputs_kernel(params, inputs);
  params.linear.out = out[1].data();
  trtspec::amx::linear_codes_amx(params, inputs);
  CHECK(std::memcmp(out[0].data(), out[1].data(), sizeof(float) * out[0].size()) == 0);
  float largest = 0;
  for (const float each : out[0]) largest = std::max(largest, std::abs(each));
  CHECK(largest > 0.01f);
}

}  // namespace

int main() {
  if (!amx_emulator::can_run_kernels()) return 0;
  // A row, tiles that are full and that are not, two parts of rows; inputs that end within a tile,
  // and within a line; more groups than the inputs', and fewer.
  for (const std::int64_t rows : {1, 5, 16, 17, 33}) {
    check_case({rows, 300, 70, 4, 32, Case::plain});
    check_case({rows, 33, 7, 4, 0, Case::offsets});
    check_case({rows, 300, 40, 8, 0, Case::zeros});
    check_case({rows, 530, 16, 8, 256, Case::plain});
    check_case({rows, 77, 40, 4, 16, Case::table});
    check_case({rows, 200, 16, 8, 64, Case::offsets});
  }
  check_case({97, 256, 64, 4, 128, Case::zeros});
  return check_result();
}
