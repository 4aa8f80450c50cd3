#pragma once
#include <trtspec/head_products.hpp>

#include "isa.hpp"

namespace trtspec {

constexpr std::int64_t kProductRows = 48;  // rows of a head that are multiplied together

// Outputs padded to whole vectors of every instruction set.
constexpr std::int64_t padded_outputs(std::int64_t outputs) { return (outputs + 15) / 16 * 16; }

// Every head and block of kProductRows rows; `scratch` has for each thread room for the rows'
// inputs and padded outputs.
TRTSPEC_DECLARE_KERNEL(void, head_products_kernel,
                       (const HeadProductsParams& params, float* scratch, int threads))

}  // namespace trtspec
