// Launches a kernel on a stream, or runs it at once where kernels are compiled for the emulator.
#pragma once

#include "device.cuh"

#include <cstddef>
#include <type_traits>

namespace trtspec::cuda {

// Grids beyond what a device takes, or more shared memory than it has, come back as the error.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                   std::size_t shared_bytes, cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  constexpr std::size_t kAlwaysThere = 48 * 1024;
  if (shared_bytes > kAlwaysThere) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
#if defined(__CUDACC__)
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
#else
  (void)stream;
  return emulation::run(reinterpret_cast<const void*>(kernel), grid, threads, shared_bytes,
                        [=] { kernel(arguments...); });
#endif
}

}  // namespace trtspec::cuda
