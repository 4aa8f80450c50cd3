// Stands in for the CUDA runtime's header where kernels are compiled as C++ and run by the
// emulator: the types that launchers name.
#pragma once

#include <cstddef>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = struct CUstream_st*;
