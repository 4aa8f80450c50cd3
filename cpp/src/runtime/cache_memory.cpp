#include "trtspec/runtime/cache_memory.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <stdexcept>
#include <trtspec/kv_compact.hpp>
#include <vector>

namespace trtspec {

namespace {

std::vector<void*> addresses(std::span<const at::Tensor> caches) {
  std::vector<void*> data;
  for (const at::Tensor& cache : caches) data.push_back(cache.data_ptr());
  return data;
}

struct Rows {
  std::int64_t bytes;
  std::int64_t slots;  // of a cache
};

Rows rows_of(std::span<const at::Tensor> caches, std::int64_t row_elements,
             std::span<const std::int64_t> src_slots, std::span<const std::int64_t> dst_slots) {
  if (src_slots.size() != dst_slots.size()) {
    throw std::logic_error("as many source as destination slots are needed");
  }
  const at::Tensor& first = caches.front();
  return {row_elements * static_cast<std::int64_t>(first.element_size()),
          first.numel() / row_elements};
}

}  // namespace

at::Tensor HostCacheMemory::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, at::dtype(dtype));
}

void HostCacheMemory::clear(const at::Tensor& cache) { cache.zero_(); }

void HostCacheMemory::move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                                std::span<const std::int64_t> src_slots,
                                std::span<const std::int64_t> dst_slots) {
  const Rows rows = rows_of(caches, row_elements, src_slots, dst_slots);
  kv_compact(addresses(caches).data(), std::ssize(caches), rows.bytes, rows.slots,
             src_slots.data(), dst_slots.data(), std::ssize(src_slots));
}

at::Tensor GpuCacheMemory::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::size_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  const auto memory = std::make_shared<GpuMemory>(gpu_, std::max<std::size_t>(bytes, 1));
  gpu_->zero(memory->data(), bytes);
  return at::from_blob(memory->data(), sizes, [memory](void*) {}, at::dtype(dtype));
}

void GpuCacheMemory::clear(const at::Tensor& cache) {
  if (!cache.is_contiguous()) throw std::logic_error("a cache is cleared in one piece");
  gpu_->zero(cache.data_ptr(), cache.nbytes());
}

void GpuCacheMemory::move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                               std::span<const std::int64_t> src_slots,
                               std::span<const std::int64_t> dst_slots) {
  const Rows rows = rows_of(caches, row_elements, src_slots, dst_slots);
  gpu_->move_rows(addresses(caches), rows.bytes, rows.slots, src_slots, dst_slots);
}

}  // namespace trtspec
