// CudaGpu: the first CUDA device that is visible, and the stream of all that runs on it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <trtspec/runtime/gpu.hpp>
#include <vector>

namespace trtspec {

class CudaGpu final : public Gpu {
 public:
  // Throws Error if there is no device.
  CudaGpu();
  ~CudaGpu() override;
  CudaGpu(const CudaGpu&) = delete;
  CudaGpu& operator=(const CudaGpu&) = delete;

  cudaStream_t stream() const { return stream_; }
  // So many others, the same ones at each call, for work that stream() waits for. None of all these
  // waits for the default stream, on which other libraries work.
  std::vector<cudaStream_t> auxiliary_streams(std::size_t count);

  std::string name() const override { return properties_.name; }
  std::string compute_capability() const override;
  std::int64_t free_memory() const override;
  double measure_bandwidth() override;

  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void copy_to_device(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void copy_on_device(void* to, const void* from, std::size_t bytes) override;
  void zero(void* memory, std::size_t bytes) override;
  void move_rows(std::span<void* const> caches, std::int64_t row_bytes, std::int64_t num_slots,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override;
  void sample(const float* logits, std::int64_t rows, std::int64_t vocab,
              const SamplingRows& params, std::int64_t* ids) override;
  void draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                        const SamplingRows& params, const std::int64_t* token_map,
                        std::int64_t count, std::int64_t* ids, float* logprobs) override;
  void synchronize() override;

 private:
  // At least so many bytes for one kernel at a time.
  void* workspace(std::size_t bytes);

  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::vector<cudaStream_t> auxiliary_;
  void* slots_ = nullptr;  // of the rows that one launch moves: sources, then destinations
  void* workspace_ = nullptr;
  std::size_t workspace_size_ = 0;
};

}  // namespace trtspec
