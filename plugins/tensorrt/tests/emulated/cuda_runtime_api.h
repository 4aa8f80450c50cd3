// The emulator's stand-in for the CUDA runtime, with what TensorRT's headers and the plugins name
// beside it.
#pragma once

#include_next <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>

using cudaEvent_t = struct CUevent_st*;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}

inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                                     std::size_t from_pitch, std::size_t width, std::size_t height,
                                     cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
