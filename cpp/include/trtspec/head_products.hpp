// A matrix of each head times what the rows have for that head.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>

namespace trtspec {

struct HeadProductsParams {
  // All of these have `dtype`; arithmetic is in float. Elements of a head lie side by side; strides
  // of x are in elements.
  const void* x;  // [rows, heads, inputs]
  std::int64_t x_row_stride;
  std::int64_t x_head_stride;
  const void* weight;  // [heads, inputs, outputs]
  void* out;           // [rows, heads, outputs]
  DType dtype;

  std::int64_t rows;
  std::int64_t heads;
  std::int64_t inputs;
  std::int64_t outputs;
};

// out[t][h] = x[t][h] times weight[h], every element one chain over the inputs, rounded once: no
// bit of a row depends on the others or on the number of threads.
void head_products(const HeadProductsParams& params);

}  // namespace trtspec
