// y = x W^T + bias for few rows, at the speed of reading W.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

namespace trtspec {

constexpr std::int64_t kPanel = 64;  // output features packed together

struct LinearParams {
  const void* x;       // [rows, in_features], of `dtype`, row stride in_features
  const void* packed;  // [ceil(out_features / 64), in_features, 64], of `dtype`:
                       // packed[p][k][c] = W[64 p + c][k], zero beyond out_features
  const void* bias;    // [out_features], of `dtype`, or null
  void* out;           // [rows, out_features], of `out_dtype`
  std::int64_t rows;
  std::int64_t in_features;
  std::int64_t out_features;
  DType dtype;
  DType out_dtype;
};

// Each output is one chain of float multiply-adds over k = 0 .. in_features - 1 from zero, plus the
// bias, rounded once. (Of each pair of k the second comes first where the processor's bfloat16 dot
// product is used.) So its bits do not depend on the other rows or on the number of threads.
void linear(const LinearParams& params);

}  // namespace trtspec
