// Reading memory as fast as one thread can.
#pragma once
#include <cstdint>

#include "isa.hpp"

namespace trtspec {

// The sum of `count` words, a multiple of 16.
TRTSPEC_DECLARE_KERNEL(std::uint64_t, read_kernel, (const std::uint64_t* data, std::int64_t count))

}  // namespace trtspec
