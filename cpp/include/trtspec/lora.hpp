// Low-rank adapters beside a product: what each row's own adapter adds to it.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>
#include <trtspec/linear.hpp>

namespace trtspec {

struct LoraParams {
  // x, its prologue and the residual are those of the product beside which this stands: rows,
  // in_features, out_features, dtype, out_dtype, norm and eps too. It has no packed weights and no
  // bias.
  LinearParams linear;
  const void* a;              // [adapters, in_features, parts * rank], of `dtype`
  const void* b;              // [adapters, rank, out_features], of `dtype`
  const std::int32_t* index;  // [rows]: each row's adapter; -1: none
  const std::int64_t* parts;  // [num_parts]: outputs of each layer of a fused one; their sum is
                              // out_features
  std::int64_t num_parts;
  std::int64_t rank;  // of each part
};

// out = residual + f(x) A B of the row's adapter; residual alone, or zero, for a row without one.
// Every element of f(x) A is one chain of float multiply-adds over the inputs, every output one over
// the rank, of its own part's elements; it is rounded once, and the sum with the residual again. So
// no bit of a row depends on the others or on the number of threads. Adapters of no row are not
// read.
void lora(const LoraParams& params);

}  // namespace trtspec
