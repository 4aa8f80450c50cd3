#include <trtspec/isa.hpp>

#include <atomic>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace trtspec {
namespace {

constexpr const char* kNames[] = {"generic", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__)
// Tiles take 8 KiB of every thread's state, so Linux wants a process to ask for them (arch_prctl's
// ARCH_REQ_XCOMP_PERM, of the 18th part of the state), and may refuse.
bool may_use_tiles() { return ::syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#endif

// Its instructions are coded as those of avx2 are; compilers of today know no name for it.
bool has_avx_vnni() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
#else
  return false;
#endif
}

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  const bool amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                   __builtin_cpu_supports("amx-int8");
  if (!avx2) return Isa::generic;
  if (!avx512) return has_avx_vnni() ? Isa::avx_vnni : Isa::avx2;
  if (!bf16) return Isa::avx512;
  return amx && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
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

Isa set_isa(Isa isa) {
  if (isa == Isa::avx_vnni && !has_avx_vnni()) isa = Isa::avx2;
  return current().exchange(isa < detected_isa() ? isa : detected_isa());
}

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_named(const char* name, Isa& isa) {
  for (int i = 0; i < int(std::size(kNames)); ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

}  // namespace trtspec
