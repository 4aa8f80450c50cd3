// The emulator's stand-in for the CUDA runtime, with what CudaGpu calls beside kernels: a device
// whose memory is the host's, of which there are 64 MiB. Nothing is deferred.
#pragma once

#include_next <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>

using cudaEvent_t = struct CUevent_st*;
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
constexpr unsigned cudaStreamNonBlocking = 1;

struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
};

namespace emulated {

constexpr std::size_t kTotal = std::size_t{64} << 20;
inline std::map<void*, std::size_t> allocations;
inline std::map<cudaStream_t, unsigned> streams;  // the flags of each
inline int num_devices = 1;

inline std::size_t free_bytes() {
  std::size_t free = kTotal;
  for (const auto& [memory, bytes] : allocations) free -= bytes;
  return free;
}

}  // namespace emulated

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::num_devices;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"the emulator", 8, 6};
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = reinterpret_cast<cudaStream_t>(new unsigned(flags));
  emulated::streams[*stream] = flags;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulated::streams.erase(stream);
  delete reinterpret_cast<unsigned*>(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 2.0F;
  return cudaSuccess;
}

inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = emulated::free_bytes();
  *total = emulated::kTotal;
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (bytes > emulated::free_bytes()) return cudaErrorInvalidValue;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xFF, bytes);
  emulated::allocations[*memory] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  emulated::allocations.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
