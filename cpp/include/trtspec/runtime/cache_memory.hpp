// CacheMemory: where the K/V caches of an engine lie, and what is done to them beside engine calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <trtspec/runtime/gpu.hpp>

namespace trtspec {

// A cache of a device is a tensor only by its sizes and its address: torch takes it for one of the
// host, so it may be narrowed and selected from, and nothing but this class and the sessions of the
// device may read or write it.
class CacheMemory {
 public:
  virtual ~CacheMemory() = default;

  // A cache of zeros.
  virtual at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  // Writes zeros to a cache, or to a contiguous part of one.
  virtual void clear(const at::Tensor& cache) = 0;
  // The contract of kv_compact over caches of equal sizes; row_elements: of one row.
  virtual void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                         std::span<const std::int64_t> src_slots,
                         std::span<const std::int64_t> dst_slots) = 0;
};

class HostCacheMemory final : public CacheMemory {
 public:
  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) override;
  void clear(const at::Tensor& cache) override;
  void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override;
};

class GpuCacheMemory final : public CacheMemory {
 public:
  explicit GpuCacheMemory(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) override;
  void clear(const at::Tensor& cache) override;
  void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override;

 private:
  std::shared_ptr<Gpu> gpu_;
};

}  // namespace trtspec
