#include <trtspec/isa.hpp>

#include <atomic>
#include <cstring>

namespace trtspec {
namespace {

constexpr const char* kNames[] = {"generic", "avx2", "avx512", "avx512_bf16"};

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = __builtin_cpu_supports("avx512bf16");
  if (avx2 && avx512) return bf16 ? Isa::avx512_bf16 : Isa::avx512;
  return avx2 ? Isa::avx2 : Isa::generic;
#else
  return Isa::generic;
#endif
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{detected_isa()};
  return isa;
}

}  // namespace

Isa detected_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa active_isa() { return current().load(std::memory_order_relaxed); }

Isa set_isa(Isa isa) { return current().exchange(isa < detected_isa() ? isa : detected_isa()); }

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_named(const char* name, Isa& isa) {
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

}  // namespace trtspec
