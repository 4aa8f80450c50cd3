// The instruction set that the kernels use: the best one of this processor, or a lower one that a
// test asks for.
#pragma once

namespace trtspec {

// From the least on, but that a processor with a later one may lack avx_vnni.
enum class Isa { generic = 0, avx2 = 1, avx_vnni = 2, avx512 = 3, avx512_bf16 = 4, amx = 5 };

// The best instruction set that this processor and operating system support.
Isa detected_isa();

// The one that kernels use now.
Isa active_isa();

// Makes kernels use `isa` from now on; anything above detected_isa() gives detected_isa(), and
// avx_vnni gives avx2 where the processor lacks it. Returns the one in use before. For tests and
// measurements.
Isa set_isa(Isa isa);

const char* isa_name(Isa isa);

// The instruction set of that name into `isa`; false if there is none.
bool isa_named(const char* name, Isa& isa);

}  // namespace trtspec
