// Pairs of int8 weights as pairs of bfloat16, which holds every byte exactly. Only for kernel
// sources with AVX-512.
#pragma once
#include <immintrin.h>
#include <trtspec/linear.hpp>

#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Sixteen bytes as floats, of which the lower halves are zero.
TRTSPEC_INLINE __m512i floats_of(const std::int8_t* w) {
  return _mm512_castps_si512((__m512)load(w));
}

// Those of two inputs, side by side for each of 16 outputs, in a panel at `w`.
TRTSPEC_INLINE __m512i byte_pairs(const std::int8_t* w) {
  return _mm512_or_si512(_mm512_srli_epi32(floats_of(w), 16), floats_of(w + kPanel));
}

}  // namespace trtspec::TRTSPEC_ISA_NS
