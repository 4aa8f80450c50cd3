// y = x W^T + bias for few rows, at the speed of reading W.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

namespace trtspec {

constexpr std::int64_t kPanel = 64;  // output features packed together

// Whether weights are packed in pairs of inputs, as processors multiply bfloat16.
constexpr bool in_pairs(DType dtype, std::int64_t in_features) {
  return dtype == DType::bf16 && in_features % 2 == 0;
}

// What is made of x before the product, each row by itself; rounded to the dtype of x.
enum class Prologue {
  none,
  rms_norm,  // norm * round(x / sqrt(mean(x^2) + eps)), in the order of rounding of Llama
  swiglu,    // g / (1 + e^-g) * u of the gates g, the first half of a row, and the rest, u
};

struct LinearParams {
  const void* x;       // [rows, in_features], of `dtype`; for swiglu [rows, 2 * in_features]
  const void* packed;  // [ceil(out_features / 64), in_features, 64], of `dtype`:
                       // packed[p][k][c] = W[64 p + c][k], zero beyond out_features; if
                       // in_pairs, each [2][64] of two inputs is kept as [64][2]
  const void* bias;    // [out_features], of `dtype`, or null
  void* out;           // [rows, out_features], of `out_dtype`
  std::int64_t rows;
  std::int64_t in_features;
  std::int64_t out_features;
  DType dtype;
  DType out_dtype;
  Prologue prologue = Prologue::none;
  const void* norm = nullptr;  // [in_features], of `dtype`: the weight of rms_norm
  float eps = 0;
  const void* residual = nullptr;  // [rows, out_features], of `out_dtype`, or null
};

// Each output is one chain of float multiply-adds over k = 0 .. in_features - 1 from zero, plus the
// bias, rounded once. (Of each pair of k the second comes first where the processor's bfloat16 dot
// product is used.) The residual is added to that and rounded again. So its bits do not depend on
// the other rows or on the number of threads.
void linear(const LinearParams& params);

constexpr std::int64_t kCodeOutputs = 16;  // output features of codes that are packed together

// The same with weights in codes of 4 or 8 bits: W = (code - zero) * scale + offset; or in floats of
// 8 bits, times a scale.
struct LinearQuantisedParams {
  LinearParams linear;  // packed: [ceil(out_features / 16), ceil(in_features / D), 16, 4] bytes of
                        // D = 32 / bits inputs: codes plus 2^(bits - 1); those of 4 bits in the
                        // lower halves of four bytes for inputs 0 to 3, in the upper for 4 to 7
  const void* scales;   // [ceil(out_features / 16), groups, 16] of scale_dtype
  const void* offsets;  // as scales, or null
  const std::int8_t* zeros;  // as many, or null
  DType scale_dtype;
  std::int64_t bits;
  std::int64_t group_size;  // input features that share a scale, a multiple of 16; 0: all of them
  std::int64_t input_bits;  // 8 or 16, to which inputs are rounded: products are of whole numbers;
                            // 0: inputs are floats
  const std::int8_t* table = nullptr;  // what the 16 codes of 4 bits stand for; null: themselves
  bool e4m3 = false;  // whether bytes are floats of 4 bits of exponent and 3 of mantissa; only by
                      // inputs that are floats
};

// With input_bits the inputs of a row, in groups of group_size or 128, whichever is less, are rounded
// to 127ths, or 32767ths, of their largest magnitude; products are summed as whole numbers over a
// group, and the groups in their order by float multiply-adds. Otherwise each output is, over the
// groups in their order, one chain of float multiply-adds of scale times the group's own chain over
// its k; plus the bias, rounded once.
void linear_quantised(const LinearQuantisedParams& params);

}  // namespace trtspec
