// A row as 8 bits times a scale. Only for kernel sources.
#pragma once
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

// Writes round(x / scale), with the greatest |x| at 127, and returns the scale. A row that is not
// finite has the scale NaN: what reads it shows it.
template <class Value>
inline float quantise_row(const Value* from, std::int64_t size, std::int8_t* to) {
  float most = 0;
  bool is_finite = true;
  for (std::int64_t d = 0; d < size; ++d) {
    const float x = to_float(from[d]);
    const float magnitude = x < 0 ? -x : x;
    is_finite = is_finite && magnitude <= __FLT_MAX__;
    most = magnitude > most ? magnitude : most;
  }
  const float per_step = is_finite && most > 0 ? 127 / most : 0;
  for (std::int64_t d = 0; d < size; ++d) {
    const float x = is_finite ? to_float(from[d]) * per_step : 0;
    const float nearest = __builtin_rintf(x);
    to[d] = std::int8_t(nearest > 127 ? 127 : nearest < -127 ? -127 : nearest);
  }
  return is_finite ? most / 127 : __builtin_nanf("");
}

}  // namespace trtspec::TRTSPEC_ISA_NS
