// float64 exp and log for scalars and GCC vectors alike, from plain additions and multiplications
// (no fused ones), so a scalar and every vector width give the same bits. Errors are below 2 ulp.
//
// The functions are always inlined because sources for several instruction sets include them, and
// constexpr so that CUDA kernels may call them.
#pragma once

#include <cstdint>

namespace trtspec::math {

inline constexpr std::uint64_t kMantissaMask = 0x000fffffffffffffull;
inline constexpr double kTwo52 = 0x1p52;
inline constexpr double kUniformScale = 0x1p-32;

// e^x for x <= 709; 0 below -700. D is double or a vector of doubles, U the unsigned 64-bit match.
template <class D, class U>
[[gnu::always_inline]] constexpr D exp_of(D x) {
  const D clamped = x < -700.0 ? D{} - 700.0 : x;
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits of the sum.
  const D shifted = clamped * 0x1.71547652b82fep+0 + 0x1.8p52;
  const D k = shifted - 0x1.8p52;
  const D r = (clamped - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  D p = r * (1.0 / 479001600.0) + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r;
  p = p + 1.0;
  const U bits = __builtin_bit_cast(U, p) + (__builtin_bit_cast(U, shifted) << 52);
  const D result = __builtin_bit_cast(D, bits);
  return x < -700.0 ? D{} : result;
}

// Natural logarithm of a positive, finite, normal number (the method of fdlibm's e_log.c). Exact
// subtraction makes it accurate to the last bits on both sides of 1 too.
template <class D, class U>
[[gnu::always_inline]] constexpr D log_of(D x) {
  constexpr std::uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;  // bits of sqrt(2)/2
  const U bits = __builtin_bit_cast(U, x) + (0x3ff0000000000000ull - kSqrtHalf);
  const U exponent_bits = (bits >> 52) | 0x4330000000000000ull;
  const D k = __builtin_bit_cast(D, exponent_bits) - (kTwo52 + 1023.0);
  const U mantissa = (bits & kMantissaMask) + kSqrtHalf;
  const D f = __builtin_bit_cast(D, mantissa) - 1.0;
  const D half_square = f * f * 0.5;
  const D s = f / (f + 2.0);
  const D z = s * s;
  const D w = z * z;
  const D even = w * (w * (w * 1.531383769920937332e-01 + 2.222219843214978396e-01) +
                      3.999999999940941908e-01);
  const D odd = z * (w * (w * (w * 1.479819860511658591e-01 + 1.818357216161805012e-01) +
                          2.857142874366239149e-01) +
                     6.666666666666735130e-01);
  return s * (half_square + (even + odd)) + k * 1.90821492927058770002e-10 - half_square + f +
         k * 6.93147180369123816490e-01;
}

// E = -log1p(-x) with x = (word + 0.5) / 2^32, word given as a float64. 1 - x has 33 bits, so it is
// exact, and its logarithm keeps full relative accuracy down to the smallest x.
template <class D, class U>
[[gnu::always_inline]] constexpr D exponential_of(D word) {
  const D x = (word + 0.5) * kUniformScale;
  const D complement = 1.0 - x;
  return -log_of<D, U>(complement);
}

[[gnu::always_inline]] constexpr double exp_of(double x) {
  return exp_of<double, std::uint64_t>(x);
}
[[gnu::always_inline]] constexpr double log_of(double x) {
  return log_of<double, std::uint64_t>(x);
}

// The Gumbel noise of 32 random bits, in [-3.2, 22.9].
[[gnu::always_inline]] constexpr double gumbel_of(std::uint32_t word) {
  return -log_of(exponential_of<double, std::uint64_t>(static_cast<double>(word)));
}

}  // namespace trtspec::math
