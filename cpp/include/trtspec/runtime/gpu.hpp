// Gpu: what the runtime needs of CUDA: memory of one device, and what is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <trtspec/sampling.hpp>
#include <utility>

namespace trtspec {

// Work runs on the device in the order of the calls, that of TensorRT's contexts among it, and no
// call but `synchronize` waits for it: host memory that a copy reads or writes must be left alone
// until then. Everything throws Error, with CUDA's own words, if it fails.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual std::string name() const = 0;                // "NVIDIA L4"
  virtual std::string compute_capability() const = 0;  // "8.9"
  // Bytes of its memory that can be had.
  virtual std::int64_t free_memory() const = 0;
  // Bytes a second at which it reads and writes its memory.
  virtual double measure_bandwidth() = 0;

  // Memory aligned to at least 256 bytes. Throws Error, naming both sizes, if there is not as much.
  virtual void* allocate(std::size_t bytes) = 0;
  // Waits for the work that was given before.
  virtual void release(void* memory) noexcept = 0;

  virtual void copy_to_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  // The contract of kv_compact, with caches on the device and slots on the host, which are read
  // before it returns.
  virtual void move_rows(std::span<void* const> caches, std::int64_t row_bytes,
                         std::int64_t num_slots, std::span<const std::int64_t> src_slots,
                         std::span<const std::int64_t> dst_slots) = 0;
  // The contracts of sampling.hpp, with all pointers on the device.
  virtual void sample(const float* logits, std::int64_t rows, std::int64_t vocab,
                      const SamplingRows& params, std::int64_t* ids) = 0;
  virtual void draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                                const SamplingRows& params, const std::int64_t* token_map,
                                std::int64_t count, std::int64_t* ids, float* logprobs) = 0;
  // Waits until everything is done.
  virtual void synchronize() = 0;
};

// Memory of a device that is given back with its owner.
class GpuMemory {
 public:
  explicit GpuMemory(std::shared_ptr<Gpu> gpu, std::size_t bytes = 0) : gpu_(std::move(gpu)) {
    reserve(bytes);
  }
  ~GpuMemory() {
    if (data_) gpu_->release(data_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }
  // At least so many bytes; what was in them is lost if there were fewer.
  void reserve(std::size_t bytes) {
    if (bytes <= size_) return;
    if (data_) gpu_->release(data_);
    data_ = nullptr;
    size_ = 0;
    data_ = gpu_->allocate(bytes);
    size_ = bytes;
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trtspec
