#include "cuda_gpu.hpp"

#include <algorithm>
#include <kernels.hpp>
#include <stdexcept>
#include <trtspec/error.hpp>
#include <utility>

namespace trtspec {

namespace {

constexpr int kDevice = 0;
constexpr std::size_t kSlotBytes = sizeof(std::int64_t);
// Copied within the device to measure its memory's speed, and how often.
constexpr std::size_t kMeasuredBytes = std::size_t{256} << 20;
constexpr int kMeasuredCopies = 8;

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  throw Error(what + " failed: " + cudaGetErrorString(status));
}

// An event that is destroyed with its owner.
class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double seconds_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaGpu::CudaGpu() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    throw Error(std::string("backend 'tensorrt' needs a CUDA device, and none is found (") +
                (found == cudaSuccess ? "no device" : cudaGetErrorString(found)) +
                "); check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or rebuild the engine "
                "with --backend onnx");
  }
  check(cudaSetDevice(kDevice), "cudaSetDevice");
  check(cudaGetDeviceProperties(&properties_, kDevice), "cudaGetDeviceProperties");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  slots_ = allocate(2 * kSlotBytes * cuda::kMaxCompactPairs);
}

CudaGpu::~CudaGpu() {
  release(slots_);
  release(workspace_);
  for (cudaStream_t stream : auxiliary_) cudaStreamDestroy(stream);
  cudaStreamDestroy(stream_);
}

std::vector<cudaStream_t> CudaGpu::auxiliary_streams(std::size_t count) {
  while (auxiliary_.size() < count) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    auxiliary_.push_back(stream);
  }
  return {auxiliary_.data(), auxiliary_.data() + count};
}

std::string CudaGpu::compute_capability() const {
  return std::to_string(properties_.major) + "." + std::to_string(properties_.minor);
}

std::int64_t CudaGpu::free_memory() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

double CudaGpu::measure_bandwidth() {
  const std::size_t bytes =
      std::min(kMeasuredBytes, static_cast<std::size_t>(free_memory()) / 8) / 512 * 512;
  if (bytes == 0) throw Error(name() + " has no memory to spare");
  void* memory = allocate(2 * bytes);
  auto* other = static_cast<char*>(memory) + bytes;
  double best = 0.0;
  try {
    Event begin, end;
    for (int i = 0; i < kMeasuredCopies; ++i) {
      begin.record(stream_);
      check(cudaMemcpyAsync(other, memory, bytes, cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
      end.record(stream_);
      synchronize();
      // Read once and written once.
      best = std::max(best, 2.0 * static_cast<double>(bytes) / end.seconds_since(begin));
    }
  } catch (...) {
    release(memory);
    throw;
  }
  release(memory);
  return best;
}

void* CudaGpu::allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaSuccess) return memory;
  cudaGetLastError();  // this error is told here, and shall not be found again
  throw Error(std::to_string(bytes) + " bytes of " + name() + "'s memory are needed, " +
              std::to_string(free_memory()) + " are free (" + cudaGetErrorString(status) +
              "); lower max_batch_size or kv_cache_free_memory_fraction");
}

void CudaGpu::release(void* memory) noexcept {
  cudaStreamSynchronize(stream_);
  cudaFree(memory);
}

void CudaGpu::copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the GPU");
}

void CudaGpu::copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the GPU");
}

void CudaGpu::copy_on_device(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
        "a copy within the GPU");
}

void CudaGpu::zero(void* memory, std::size_t bytes) {
  check(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync");
}

void CudaGpu::move_rows(std::span<void* const> caches, std::int64_t row_bytes, std::int64_t,
                        std::span<const std::int64_t> src_slots,
                        std::span<const std::int64_t> dst_slots) {
  // A launch reads all its rows before it writes any; among several, nothing that a later one reads
  // may have been written: rows only ever move towards the beginning of their sequence.
  const auto most = static_cast<std::size_t>(cuda::kMaxCompactPairs);
  for (std::size_t first = 0; first < src_slots.size(); first += most) {
    const std::size_t count = std::min(most, src_slots.size() - first);
    auto* src = static_cast<std::int64_t*>(slots_);
    std::int64_t* dst = src + most;
    copy_to_device(src, src_slots.data() + first, count * kSlotBytes);
    copy_to_device(dst, dst_slots.data() + first, count * kSlotBytes);
    synchronize();  // the caller's slots have been read
    check(cuda::kv_compact(caches.data(), std::ssize(caches), row_bytes, src, dst,
                           static_cast<std::int64_t>(count), stream_),
          "moving rows of the K/V cache");
  }
}

void CudaGpu::sample(const float* logits, std::int64_t rows, std::int64_t vocab,
                     const SamplingRows& params, std::int64_t* ids) {
  void* memory = workspace(cuda::sample_workspace(rows, vocab));
  check(cuda::sample(logits, rows, vocab, params, ids, memory, stream_), "sampling");
}

void CudaGpu::draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                               const SamplingRows& params, const std::int64_t* token_map,
                               std::int64_t count, std::int64_t* ids, float* logprobs) {
  void* memory = workspace(cuda::draft_candidates_workspace(rows, vocab, count));
  check(cuda::draft_candidates(logits, rows, vocab, params, token_map, count, ids, logprobs, memory,
                               stream_),
        "choosing a draft's candidates");
}

void* CudaGpu::workspace(std::size_t bytes) {
  if (bytes > workspace_size_) {
    release(std::exchange(workspace_, nullptr));
    workspace_size_ = 0;
    workspace_ = allocate(bytes);
    workspace_size_ = bytes;
  }
  return workspace_;
}

void CudaGpu::synchronize() { check(cudaStreamSynchronize(stream_), "work on the GPU"); }

}  // namespace trtspec
