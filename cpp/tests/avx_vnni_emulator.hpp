// Runs programs with the dot products of AVX-VNNI on processors without them: they trap as illegal
// instructions (SIGILL), and are decoded and done on the registers that the signal saved. What is
// emulated: vpdpbusd and vpdpwssd of vectors of 32 bytes, all three in registers; anything else ends
// the program. Semantics and encodings: Intel's Software Developer's Manual, volumes 1 (13.4, how
// registers are saved) and 2.
#pragma once
#include <cpuid.h>
#include <signal.h>
#include <trtspec/isa.hpp>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace avx_vnni_emulator {

constexpr std::size_t kLowHalves = 160;    // in the saved state
constexpr std::size_t kSavedParts = 512;   // a bit for each part of it
constexpr std::size_t kHighHalves = 576;   // as processors tell it, see can_run_kernels
constexpr std::uint64_t kVectorParts = 6;  // lower and upper halves of vectors

using Vector = std::array<std::uint8_t, 32>;

[[noreturn]] inline void refuse(const char* reason) {
  std::fprintf(stderr, "avx_vnni_emulator: %s\n", reason);
  std::abort();
}

class Registers {
 public:
  explicit Registers(std::uint8_t* saved) : saved_(saved) {}

  Vector get(int number) const {
    Vector value;
    std::memcpy(value.data(), saved_ + kLowHalves + 16 * number, 16);
    std::memcpy(value.data() + 16, saved_ + kHighHalves + 16 * number, 16);
    return value;
  }

  void set(int number, const Vector& value) {
    std::memcpy(saved_ + kLowHalves + 16 * number, value.data(), 16);
    std::memcpy(saved_ + kHighHalves + 16 * number, value.data() + 16, 16);
  }

 private:
  std::uint8_t* saved_;
};

constexpr std::uint8_t kOfBytes = 0x50, kOfWords = 0x52;

// Adds to each number of the sums the products of four bytes without a sign and four with one, or of
// two words each.
inline void add_products(std::uint8_t kind, Vector& sums, const Vector& a, const Vector& b) {
  for (std::size_t i = 0; i < sums.size(); i += 4) {
    std::int32_t sum;
    std::memcpy(&sum, &sums[i], sizeof sum);
    if (kind == kOfBytes) {
      for (std::size_t k = i; k < i + 4; ++k) sum += a[k] * static_cast<std::int8_t>(b[k]);
    } else {
      std::int16_t x[2], y[2];
      std::memcpy(x, &a[i], sizeof x);
      std::memcpy(y, &b[i], sizeof y);
      sum += x[0] * y[0] + x[1] * y[1];
    }
    std::memcpy(&sums[i], &sum, sizeof sum);
  }
}

inline void on_illegal_instruction(int, siginfo_t*, void* context) {
  mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
  const auto* const code = reinterpret_cast<const std::uint8_t*>(machine.gregs[REG_RIP]);
  // A VEX prefix of three bytes, the map 0F38, W 0, 32 bytes, the prefix 66.
  const bool is_known = code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x87) == 5 &&
                        (code[3] == kOfBytes || code[3] == kOfWords) && code[4] >> 6 == 3;
  if (!is_known) refuse("an instruction that is not emulated");
  auto* const saved = reinterpret_cast<std::uint8_t*>(machine.fpregs);
  std::uint64_t parts;
  std::memcpy(&parts, saved + kSavedParts, sizeof parts);
  if ((parts & kVectorParts) != kVectorParts) refuse("vectors were not saved");
  Registers registers(saved);
  const int sums = (code[4] >> 3 & 7) | (code[1] & 0x80 ? 0 : 8);
  const int b = (code[4] & 7) | (code[1] & 0x20 ? 0 : 8);
  const int a = ~code[2] >> 3 & 15;
  Vector value = registers.get(sums);
  add_products(code[3], value, registers.get(a), registers.get(b));
  registers.set(sums, value);
  machine.gregs[REG_RIP] += 5;
}

// Whether kernels for AVX-VNNI can run here, if need be on the emulator; prints why not.
inline bool can_run_kernels() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (trtspec::detected_isa() < trtspec::Isa::avx2) {
    std::printf("not run: this processor has no AVX2\n");
    return false;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0) return true;
  if (__get_cpuid_count(13, 2, &eax, &ebx, &ecx, &edx) == 0 || ebx != kHighHalves) {
    std::printf("not run: this processor saves vectors in another place\n");
    return false;
  }
  std::printf("emulated: this processor has no AVX-VNNI\n");
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGILL, &action, nullptr) != 0) refuse("sigaction failed");
  return true;
}

}  // namespace avx_vnni_emulator
