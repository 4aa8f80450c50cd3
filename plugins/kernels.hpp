// The CUDA kernels, as their callers see them: raw device pointers, no framework's headers.
//
// Parameters are those of the CPU kernels (cpp/include/trtspec), with every pointer on the device.
// A launcher enqueues on `stream` and returns at once; the cudaError_t it returns is that of the
// launch. Values that the CPU kernels check (slots, tables, lengths) are not checked here: the
// caller has done it. None of the launchers allocates or synchronises, so all may be captured into
// a CUDA graph, and a captured launch is right for any content of its buffers.
#pragma once

#include <cuda_runtime_api.h>
#include <trtspec/attention.hpp>
#include <trtspec/sampling.hpp>

#include <cstddef>
#include <cstdint>

namespace trtspec::cuda {

// Bytes of scratch memory that paged_tree_attention needs; depends on sizes alone, not on what the
// pointers hold.
std::size_t paged_tree_attention_workspace(const AttentionParams& params);
cudaError_t paged_tree_attention(const AttentionParams& params, void* workspace,
                                 cudaStream_t stream);

}  // namespace trtspec::cuda
