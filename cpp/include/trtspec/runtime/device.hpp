// Device: where the K/V caches and the logits of an engine lie, and what is done to them beside
// engine calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <trtspec/runtime/gpu.hpp>
#include <trtspec/sampling.hpp>
#include <vector>

namespace trtspec {

// What lies on a GPU is a tensor only by its sizes and its address: torch takes it for one of the
// host, so it may be narrowed and selected from, and nothing but this class and the sessions of the
// GPU may read or write it.
class Device {
 public:
  virtual ~Device() = default;

  // A cache of zeros.
  virtual at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  // Writes zeros to a cache, or to a contiguous part of one.
  virtual void clear(const at::Tensor& cache) = 0;
  // The contract of kv_compact over caches of equal sizes; row_elements: of one row.
  virtual void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                         std::span<const std::int64_t> src_slots,
                         std::span<const std::int64_t> dst_slots) = 0;
  // Copies rows of logits [n, V], the first ones, to rows `indices` of others.
  virtual void place_rows(const at::Tensor& to, std::span<const std::int64_t> indices,
                          const at::Tensor& from) = 0;

  // Logits [rows, V], contiguous and on the host, to be changed: a copy, where they lie elsewhere.
  virtual at::Tensor to_host(const at::Tensor& logits) = 0;
  // The contracts of sampling.hpp over logits [rows, V] f32. All but the logits is on the host.
  // token_map [V] i64: undefined, or always the same for the tensor that it is.
  virtual void sample(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids) = 0;
  virtual void draft_candidates(const at::Tensor& logits, const SamplingRows& params,
                                const at::Tensor& token_map, std::int64_t count, std::int64_t* ids,
                                float* logprobs) = 0;
};

class HostDevice final : public Device {
 public:
  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) override;
  void clear(const at::Tensor& cache) override;
  void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override;
  void place_rows(const at::Tensor& to, std::span<const std::int64_t> indices,
                  const at::Tensor& from) override;
  at::Tensor to_host(const at::Tensor& logits) override;
  void sample(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids) override;
  void draft_candidates(const at::Tensor& logits, const SamplingRows& params,
                        const at::Tensor& token_map, std::int64_t count, std::int64_t* ids,
                        float* logprobs) override;
};

class GpuDevice final : public Device {
 public:
  explicit GpuDevice(std::shared_ptr<Gpu> gpu);

  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) override;
  void clear(const at::Tensor& cache) override;
  void move_rows(std::span<const at::Tensor> caches, std::int64_t row_elements,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override;
  void place_rows(const at::Tensor& to, std::span<const std::int64_t> indices,
                  const at::Tensor& from) override;
  at::Tensor to_host(const at::Tensor& logits) override;
  void sample(const at::Tensor& logits, const SamplingRows& params, std::int64_t* ids) override;
  void draft_candidates(const at::Tensor& logits, const SamplingRows& params,
                        const at::Tensor& token_map, std::int64_t count, std::int64_t* ids,
                        float* logprobs) override;

 private:
  // A map's copy on the device, and the tensor, which keeps its address its own.
  struct TokenMap {
    at::Tensor host;
    std::unique_ptr<GpuMemory> device;
  };

  SamplingRows to_gpu(const SamplingRows& params, std::int64_t rows);
  const std::int64_t* to_gpu(const at::Tensor& token_map);

  std::shared_ptr<Gpu> gpu_;
  std::vector<std::byte> host_params_;
  GpuMemory params_;
  GpuMemory chosen_;  // ids, then log probabilities
  std::map<const void*, TokenMap> token_maps_;
};

}  // namespace trtspec
