// Element types of the kernels. 16-bit floats are plain bits here; arithmetic is in float.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trtspec {

enum class DType { f32, bf16, f16 };

struct bf16 {
  std::uint16_t bits;
};

struct f16 {
  std::uint16_t bits;
};

constexpr std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

}  // namespace trtspec
