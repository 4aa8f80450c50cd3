// Stands in for kernels/launch.hpp: prints a launch as a line instead of running it.
#pragma once

#include "device.cuh"

#include <cstddef>
#include <cstdio>
#include <type_traits>

namespace trtspec::cuda {

template <class T>
void print_bytes(const T& value) {
  std::printf(" ");
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  for (std::size_t i = 0; i < sizeof(T); ++i) std::printf("%02x", bytes[i]);
}

template <class... Parameters>
cudaError_t launch(void (*)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes,
                   cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
  std::printf("%u %u %u %u %zu %zu", grid.x, grid.y, grid.z, threads, shared_bytes,
              reinterpret_cast<std::size_t>(stream));
  (print_bytes(arguments), ...);
  std::printf("\n");
  return cudaSuccess;
}

}  // namespace trtspec::cuda
