#pragma once
#include <trtspec/causal_conv.hpp>

#include "isa.hpp"

namespace trtspec {

// `inputs [rows][width]`: of each row what it reads, its own input first, then that of the row
// before; null: zeros. `last [requests]`: of each its last certain row; -1: it is padding or has no
// rows. `blocks`: in how many parts the channels are shared out.
TRTSPEC_DECLARE_KERNEL(void, causal_conv_kernel,
                       (const CausalConvParams& params, const void* const* inputs,
                        const std::int64_t* last, std::int64_t blocks, int threads))

}  // namespace trtspec
