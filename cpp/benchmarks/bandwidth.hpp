// How fast this machine reads memory, as the floor of what a step can take.
#pragma once

namespace trtspec::bench {

// Bytes a second at which all threads together read a buffer far larger than a usual cache, the
// best of a few passes. Takes a few tenths of a second.
double measure_read_bandwidth();

}  // namespace trtspec::bench
