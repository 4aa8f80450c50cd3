// trtspec::_read_bandwidth (contract: trtspec/ops/bandwidth.py).
#include <torch/library.h>
#include <trtspec/bandwidth.hpp>

namespace {

double read_bandwidth(int64_t bytes) {
  TORCH_CHECK(bytes >= trtspec::kMinBandwidthBytes, "_read_bandwidth: bytes must be at least ",
              trtspec::kMinBandwidthBytes, ", got ", bytes);
  return trtspec::measure_read_bandwidth(bytes);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("_read_bandwidth(int bytes) -> float", &read_bandwidth);
}
