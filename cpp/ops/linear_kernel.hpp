#pragma once
#include <trtspec/linear.hpp>

#include "isa.hpp"

namespace trtspec {

// What the prologue makes of x, of its dtype, in blocks of `block` inputs, a multiple of 16 or all:
// [in_features / block, rows, block].
TRTSPEC_DECLARE_KERNEL(void, linear_prologue_kernel,
                       (const LinearParams& params, void* out, std::int64_t block))

// x as floats [rows, in_features] with the given row stride.
TRTSPEC_DECLARE_KERNEL(void, linear_convert_kernel,
                       (const LinearParams& params, float* x, std::int64_t x_stride))

TRTSPEC_DECLARE_KERNEL(void, linear_kernel,
                       (const LinearParams& params, const float* x, std::int64_t x_stride))

// Rows of codes whose sums fit in registers together.
constexpr int code_rows(Isa isa) { return isa >= Isa::avx512 ? 12 : isa >= Isa::avx2 ? 5 : 2; }

// The inputs of linear_quantised, rows of `stride` elements with zeros behind the last, in blocks of
// nearly equal numbers of rows. In a block of n rows, four bytes of its first row are followed by
// those of its others, then come the next four bytes of each: what is multiplied together lies
// together, in places that need no register of their own for each row. What belongs to a group of
// `size` inputs lies likewise, [groups][n] in each block. Of int16 codes, inputs 4 i and 4 i + 2 are
// four bytes, and 4 i + 1 and 4 i + 3, which is how bytes of weights become 16 bits.
struct CodeInputs {
  void* x;  // int8 or int16 codes, or floats
  std::int64_t stride;
  std::int64_t blocks;
  std::int64_t size;
  std::int64_t groups;
  float* scales;          // of codes
  float* sums;            // of the inputs, as they were rounded
  std::int32_t* centres;  // less a centre of the weights' bytes times the sum of codes

  // The first of all `rows` rows in a block.
  std::int64_t first_row(std::int64_t rows, std::int64_t block) const {
    return rows * block / blocks;
  }
};

// Bytes of an input there.
constexpr std::int64_t input_bytes(const LinearQuantisedParams& params) {
  return params.input_bits > 0 ? params.input_bits / 8 : std::int64_t{sizeof(float)};
}

TRTSPEC_DECLARE_KERNEL(void, linear_code_inputs_kernel,
                       (const LinearQuantisedParams& params, const CodeInputs& inputs))

TRTSPEC_DECLARE_KERNEL(void, linear_codes_kernel,
                       (const LinearQuantisedParams& params, const CodeInputs& inputs))

// By the dot product of bytes that processors without AVX-512 have. Only where active_isa() is
// avx_vnni.
namespace avx_vnni {
void linear_codes_vnni(const LinearQuantisedParams& params, const CodeInputs& inputs);
}

// bfloat16 by the processor's own dot product, for an even number of input features; reads params.x
// as it is. Only where active_isa() is avx512_bf16 or better.
namespace avx512_bf16 {
void linear_dot(const LinearParams& params);
void linear_codes_dot(const LinearQuantisedParams& params, const CodeInputs& inputs);
}  // namespace avx512_bf16

// The same by its products of tiles, for input features in multiples of 32. params.x is in blocks,
// [in_features / 32, rows, 32]: rows that lie a power of two apart would displace each other from
// the first cache. Only where active_isa() is amx.
namespace amx {
constexpr std::int64_t kInputBlock = 32;
constexpr std::int64_t kTileCodeRows = 5;  // from which on tiles multiply codes faster than vectors
void linear_amx(const LinearParams& params);
void linear_codes_amx(const LinearQuantisedParams& params, const CodeInputs& inputs);
}  // namespace amx

}  // namespace trtspec
