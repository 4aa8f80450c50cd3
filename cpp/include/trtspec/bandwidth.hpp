// How fast this machine reads memory, as the floor of what a step can take.
#pragma once

#include <cstdint>

namespace trtspec {

inline constexpr std::int64_t kMinBandwidthBytes = std::int64_t{1} << 20;

// Bytes a second at which all OpenMP threads together read memory. `bytes` of it, at least
// kMinBandwidthBytes, are read a few times over, in pieces of a few milliseconds that are timed one
// by one; all together they must be much larger than the caches. Of the pieces the time that one in
// ten stays below counts, as other work on the machine only ever adds. Takes about ten times as
// long as reading `bytes` once.
double measure_read_bandwidth(std::int64_t bytes);

}  // namespace trtspec
