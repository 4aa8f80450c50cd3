#include "trtspec/runtime/device.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <trtspec/kv_compact.hpp>
#include <utility>

#include "tensors.hpp"

namespace trtspec {

namespace {

constexpr std::size_t kIdBytes = sizeof(std::int64_t);

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

void check(const at::Tensor& logits) {
  if (logits.dim() != 2 || !logits.is_contiguous() || logits.scalar_type() != at::kFloat) {
    throw std::logic_error("logits are [rows, vocabulary], contiguous, of float32");
  }
}

}  // namespace

at::Tensor HostDevice::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, at::dtype(dtype));
}

void HostDevice::clear(const at::Tensor& cache) { cache.zero_(); }

void HostDevice::move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                           std::span<const std::int64_t> src_slots,
                           std::span<const std::int64_t> dst_slots) {
  const Rows rows = rows_of(caches, row_elements, src_slots, dst_slots);
  kv_compact(addresses(caches).data(), std::ssize(caches), rows.bytes, rows.slots, src_slots.data(),
             dst_slots.data(), std::ssize(src_slots));
}

void HostDevice::place_rows(const at::Tensor& to, std::span<const std::int64_t> indices,
                            const at::Tensor& from) {
  to.index_copy_(0, to_tensor(std::vector(indices.begin(), indices.end())),
                 from.narrow(0, 0, std::ssize(indices)));
}

at::Tensor HostDevice::to_host(const at::Tensor& logits) { return logits.contiguous(); }

void HostDevice::sample(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids) {
  check(logits);
  trtspec::sample(logits.const_data_ptr<float>(), logits.size(0), logits.size(1), params, ids);
}

void HostDevice::draft_candidates(const at::Tensor& logits, const SamplingRows& params,
                                  const at::Tensor& token_map, std::int64_t count,
                                  std::int64_t* ids, float* logprobs) {
  check(logits);
  trtspec::draft_candidates(
      logits.const_data_ptr<float>(), logits.size(0), logits.size(1), params,
      token_map.defined() ? token_map.const_data_ptr<std::int64_t>() : nullptr, count, ids,
      logprobs);
}

GpuDevice::GpuDevice(std::shared_ptr<Gpu> gpu)
    : gpu_(std::move(gpu)), params_(gpu_), chosen_(gpu_) {}

at::Tensor GpuDevice::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::size_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  const auto memory = std::make_shared<GpuMemory>(gpu_, std::max<std::size_t>(bytes, 1));
  gpu_->zero(memory->data(), bytes);
  return at::from_blob(memory->data(), sizes, [memory](void*) {}, at::dtype(dtype));
}

void GpuDevice::clear(const at::Tensor& cache) {
  if (!cache.is_contiguous()) throw std::logic_error("a cache is cleared in one piece");
  gpu_->zero(cache.data_ptr(), cache.nbytes());
}

void GpuDevice::move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                          std::span<const std::int64_t> src_slots,
                          std::span<const std::int64_t> dst_slots) {
  const Rows rows = rows_of(caches, row_elements, src_slots, dst_slots);
  gpu_->move_rows(addresses(caches), rows.bytes, rows.slots, src_slots, dst_slots);
}

void GpuDevice::place_rows(const at::Tensor& to, std::span<const std::int64_t> indices,
                           const at::Tensor& from) {
  const auto row = static_cast<std::size_t>(from.stride(0)) * from.element_size();
  auto* target = static_cast<std::byte*>(to.data_ptr());
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  for (std::size_t first = 0, end = 0; first < indices.size(); first = end) {
    for (end = first + 1; end < indices.size() && indices[end] == indices[end - 1] + 1;) ++end;
    gpu_->copy_on_device(target + static_cast<std::size_t>(indices[first]) * row,
                         source + first * row, (end - first) * row);
  }
}

at::Tensor GpuDevice::to_host(const at::Tensor& logits) {
  check(logits);
  at::Tensor copy = at::empty(logits.sizes(), at::kFloat);
  gpu_->copy_to_host(copy.mutable_data_ptr<float>(), logits.const_data_ptr<float>(),
                     logits.nbytes());
  gpu_->synchronize();
  return copy;
}

void GpuDevice::sample(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids) {
  check(logits);
  const std::int64_t rows = logits.size(0);
  const auto bytes = static_cast<std::size_t>(rows) * kIdBytes;
  chosen_.reserve(bytes);
  auto* chosen = reinterpret_cast<std::int64_t*>(chosen_.data());
  gpu_->sample(logits.const_data_ptr<float>(), rows, logits.size(1), to_gpu(params, rows), chosen);
  gpu_->copy_to_host(ids, chosen, bytes);
  gpu_->synchronize();
}

void GpuDevice::draft_candidates(const at::Tensor& logits, const SamplingRows& params,
                                 const at::Tensor& token_map, std::int64_t count, std::int64_t* ids,
                                 float* logprobs) {
  check(logits);
  const std::int64_t rows = logits.size(0);
  const auto entries = static_cast<std::size_t>(rows * count);
  chosen_.reserve(entries * (kIdBytes + sizeof(float)));
  auto* chosen = reinterpret_cast<std::int64_t*>(chosen_.data());
  auto* gains = reinterpret_cast<float*>(chosen + entries);
  gpu_->draft_candidates(logits.const_data_ptr<float>(), rows, logits.size(1), to_gpu(params, rows),
                         to_gpu(token_map), count, chosen, gains);
  gpu_->copy_to_host(ids, chosen, entries * kIdBytes);
  gpu_->copy_to_host(logprobs, gains, entries * sizeof(float));
  gpu_->synchronize();
}

// The values of all rows, copied in one piece; those of 8 bytes first, so that all are aligned.
SamplingRows GpuDevice::to_gpu(const SamplingRows& params, std::int64_t rows) {
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t bytes = count * (3 * sizeof(std::int64_t) + 4 * sizeof(float));
  host_params_.resize(std::max(bytes, host_params_.size()));
  params_.reserve(bytes);
  std::size_t begin = 0;
  const auto place = [&]<class T>(const T* values) {
    std::memcpy(host_params_.data() + begin, values, count * sizeof(T));
    const auto* placed = reinterpret_cast<const T*>(params_.data() + begin);
    begin += count * sizeof(T);
    return placed;
  };
  SamplingRows placed{};
  placed.seed = place(params.seed);
  placed.sample_index = place(params.sample_index);
  placed.output_index = place(params.output_index);
  placed.temperature = place(params.temperature);
  placed.top_k = place(params.top_k);
  placed.top_p = place(params.top_p);
  placed.min_p = place(params.min_p);
  gpu_->copy_to_device(params_.data(), host_params_.data(), bytes);
  return placed;
}

const std::int64_t* GpuDevice::to_gpu(const at::Tensor& token_map) {
  if (!token_map.defined()) return nullptr;
  TokenMap& map = token_maps_[token_map.const_data_ptr()];
  if (!map.device) {
    map.host = token_map.contiguous();
    map.device = std::make_unique<GpuMemory>(gpu_, map.host.nbytes());
    gpu_->copy_to_device(map.device->data(), map.host.const_data_ptr(), map.host.nbytes());
  }
  return reinterpret_cast<const std::int64_t*>(map.device->data());
}

}  // namespace trtspec
