#pragma once
#include <trtspec/moe.hpp>

#include "isa.hpp"

namespace trtspec {

// gated [rows, inner] of `in` [rows, 2 * inner], both of the dtype of x.
TRTSPEC_DECLARE_KERNEL(void, moe_activate_kernel,
                       (const MoeParams& params, const void* in, std::int64_t rows, void* gated))

// sums[r] += weights[r] * y[i] for the i-th entry, of row r / top_k; entries are of different rows.
TRTSPEC_DECLARE_KERNEL(void, moe_add_kernel,
                       (const MoeParams& params, const float* y, const std::int64_t* entries,
                        std::int64_t count, float* sums))

// The sums [rows, hidden] become results.
TRTSPEC_DECLARE_KERNEL(void, moe_finish_kernel, (const MoeParams& params, const float* sums))

}  // namespace trtspec
