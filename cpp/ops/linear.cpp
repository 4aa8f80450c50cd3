#include <trtspec/linear.hpp>

#include <cstddef>

#include "linear_kernel.hpp"
#include "scratch.hpp"

namespace trtspec {

namespace {

// run(x, stride) with the rows as floats.
template <class Run>
void with_floats(const LinearParams& params, const Run& run) {
  if (params.dtype == DType::f32) {
    run(static_cast<const float*>(params.x), params.in_features);
    return;
  }
  // A stride that is no multiple of a page keeps the rows of a block in different cache sets.
  const std::int64_t stride = params.in_features + 16;
  const Scratch<float> x = make_scratch<float>(params.rows * stride);
  TRTSPEC_DISPATCH(linear_convert_kernel, params, x.get(), stride);
  run(x.get(), stride);
}

// By the shape of the weights alone, as rows must not depend on how many there are.
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
bool has_dot(const LinearParams& params) {
  return in_pairs(params.dtype, params.in_features) && active_isa() >= Isa::avx512_bf16;
}

bool has_tiles(const LinearParams& params) {
  return params.dtype == DType::bf16 && params.in_features % 32 == 0 && active_isa() >= Isa::amx;
}
#endif

// Inputs that lie side by side: all of a row, or what a tile holds of it.
std::int64_t input_block(const LinearParams& params) {
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
  if (has_tiles(params)) return amx::kInputBlock;
#endif
  return params.in_features;
}

// run(params) with what the prologue made in the place of x, in blocks of so many inputs.
template <class Run>
void with_prologue(const LinearParams& params, std::int64_t block, const Run& run) {
  const bool in_place = params.rows == 1 || block == params.in_features;
  if (params.prologue == Prologue::none && in_place) return run(params);
  const Scratch<std::byte> made = make_scratch<std::byte>(
      params.rows * params.in_features * static_cast<std::int64_t>(size_of(params.dtype)));
  TRTSPEC_DISPATCH(linear_prologue_kernel, params, made.get(), block);
  LinearParams product = params;
  product.x = made.get();
  product.prologue = Prologue::none;
  run(product);
}

// run(inputs) with those of weights in codes, in blocks of so many rows at most.
template <class Run>
void with_code_inputs(const LinearQuantisedParams& params, std::int64_t block_rows,
                      const Run& run) {
  const std::int64_t rows = params.linear.rows, depth = params.linear.in_features;
  const std::int64_t size = params.group_size > 0 ? params.group_size : depth;
  CodeInputs inputs{};
  inputs.blocks = (rows + block_rows - 1) / block_rows;
  inputs.size = params.input_bits > 0 && (params.group_size == 0 || size > 128) ? 128 : size;
  inputs.groups = (depth + inputs.size - 1) / inputs.size;
  // A stride that is no multiple of a page keeps the rows of a tile in different cache sets.
  inputs.stride = (depth + 63) / 64 * 64 + 64;
  // Tiles of rows read behind the last.
  const Scratch<std::byte> x =
      make_scratch<std::byte>((rows + 15) * inputs.stride * input_bytes(params));
  const Scratch<float> factors = make_scratch<float>(3 * rows * inputs.groups);
  inputs.x = x.get();
  inputs.scales = factors.get();
  inputs.sums = inputs.scales + rows * inputs.groups;
  inputs.centres = reinterpret_cast<std::int32_t*>(inputs.sums + rows * inputs.groups);
  TRTSPEC_DISPATCH(linear_code_inputs_kernel, params, inputs);
  run(inputs);
}

}  // namespace

void linear(const LinearParams& params) {
  if (params.rows <= 0 || params.out_features <= 0) return;
  with_prologue(params, input_block(params), [](const LinearParams& product) {
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
    if (has_tiles(product)) return amx::linear_amx(product);
    if (has_dot(product)) return avx512_bf16::linear_dot(product);
#endif
    with_floats(product, [&](const float* x, std::int64_t stride) {
      TRTSPEC_DISPATCH(linear_kernel, product, x, stride);
    });
  });
}

void linear_quantised(const LinearQuantisedParams& params) {
  const LinearParams& given = params.linear;
  if (given.rows <= 0 || given.out_features <= 0) return;
  with_prologue(given, given.in_features, [&](const LinearParams& linear) {
    LinearQuantisedParams product = params;
    product.linear = linear;
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
    // Whole numbers have the same sums in every order, so the rows may choose.
    if (product.input_bits == 8 && linear.rows >= amx::kTileCodeRows && active_isa() >= Isa::amx) {
      return with_code_inputs(
          product, 1, [&](const CodeInputs& inputs) { amx::linear_codes_amx(product, inputs); });
    }
#endif
    with_code_inputs(product, code_rows(active_isa()), [&](const CodeInputs& inputs) {
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
      if (product.input_bits > 0 && active_isa() >= Isa::avx512_bf16) {
        return avx512_bf16::linear_codes_dot(product, inputs);
      }
      if (product.input_bits > 0 && active_isa() == Isa::avx_vnni) {
        return avx_vnni::linear_codes_vnni(product, inputs);
      }
#endif
      TRTSPEC_DISPATCH(linear_codes_kernel, product, inputs);
    });
  });
}

}  // namespace trtspec
