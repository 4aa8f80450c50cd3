// The GPU as CUDA gives it, on the emulator that runs the kernels: that sizes, values and workspaces
// reach them, and that memory is accounted for.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <set>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/runtime/device.hpp>

#include "../../src/tensorrt/cuda_gpu.hpp"
#include "check.hpp"

namespace {

using namespace trtspec;

at::Tensor read(Gpu& gpu, const at::Tensor& cache) {
  at::Tensor copy = at::empty(cache.sizes(), cache.options());
  gpu.copy_to_host(copy.data_ptr(), cache.const_data_ptr(), cache.nbytes());
  gpu.synchronize();
  return copy;
}

// Logits, or a cache, with the values of a host's.
at::Tensor copied(Gpu& gpu, Device& device, const at::Tensor& values) {
  const at::Tensor made = device.zeros(values.sizes(), values.scalar_type());
  gpu.copy_to_device(made.data_ptr(), values.const_data_ptr(), values.nbytes());
  gpu.synchronize();
  return made;
}

void test_device(const std::shared_ptr<CudaGpu>& gpu) {
  CHECK_EQ(gpu->name(), "the emulator");
  CHECK_EQ(gpu->compute_capability(), "8.6");
  // An eighth of its memory, read and written in 2 ms.
  CHECK(gpu->measure_bandwidth() > 1e9 && gpu->measure_bandwidth() < 1e11);
  const std::int64_t free = gpu->free_memory();
  {
    const GpuMemory memory(gpu, 1 << 20);
    CHECK_EQ(gpu->free_memory(), free - (1 << 20));
  }
  CHECK_EQ(gpu->free_memory(), free);
  std::string said;
  try {
    gpu->allocate(std::size_t{1} << 27);
  } catch (const Error& error) {
    said = error.what();
  }
  CHECK(said.find("134217728 bytes of the emulator's memory are needed, " + std::to_string(free) +
                  " are free") == 0);
}

// One stream for all work, and others for what a library runs beside it; the default stream holds up
// none of them.
void test_streams(CudaGpu& gpu) {
  const auto streams = gpu.auxiliary_streams(3);
  std::set<cudaStream_t> all(streams.begin(), streams.end());
  all.insert(gpu.stream());
  CHECK_EQ(all.size(), 4U);
  for (const cudaStream_t stream : all) {
    CHECK(emulated::streams.contains(stream));
    CHECK_EQ(emulated::streams[stream], cudaStreamNonBlocking);
  }
  const auto fewer = gpu.auxiliary_streams(2);
  CHECK_EQ(fewer.size(), 2U);
  CHECK(fewer[0] == streams[0] && fewer[1] == streams[1]);
  CHECK_EQ(emulated::streams.size(), 4U);
}

// More rows than one launch moves, each to the place of the one before it.
void test_moved_rows(const std::shared_ptr<CudaGpu>& gpu) {
  constexpr std::int64_t kRows = 7000, kWidth = 2;
  GpuDevice device(gpu);
  HostDevice host;
  std::vector<at::Tensor> ours, theirs;
  for (int i = 0; i < 2; ++i) {
    ours.push_back(at::arange(i, i + kRows * kWidth, at::kFloat).view({kRows, kWidth}));
    theirs.push_back(copied(*gpu, device, ours.back()));
  }
  std::vector<std::int64_t> src(kRows - 1), dst(kRows - 1);
  std::iota(src.begin(), src.end(), 1);
  std::iota(dst.begin(), dst.end(), 0);
  src[5] = dst[5] = -1;  // stays
  host.move_rows(ours, kWidth, src, dst);
  device.move_rows(theirs, kWidth, src, dst);
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK(read(*gpu, theirs[i]).equal(ours[i]));
  device.clear(theirs[0].narrow(0, 10, 20));
  ours[0].narrow(0, 10, 20).zero_();
  CHECK(read(*gpu, theirs[0]).equal(ours[0]));
}

void test_sampling(const std::shared_ptr<CudaGpu>& gpu) {
  GpuDevice device(gpu);
  HostDevice host;
  constexpr std::int64_t kVocab = 700, kCount = 5;
  const at::Tensor map = at::arange(3, 3 + 3 * kVocab, 3, at::kLong);
  for (const std::int64_t rows : {2, 6, 3}) {  // workspaces grow, and are used again
    const auto n = static_cast<std::size_t>(rows);
    const at::Tensor logits =
        at::arange(rows * kVocab, at::kFloat).mul(1.7).sin().mul(6).view({rows, kVocab});
    const at::Tensor there = copied(*gpu, device, logits);
    std::vector<float> temperature(n), top_p(n), min_p(n);
    std::vector<std::int32_t> top_k(n);
    std::vector<std::int64_t> seed(n), sample_index(n), output(n);
    for (std::size_t i = 0; i < n; ++i) {
      temperature[i] = i % 3 == 0 ? 0.0F : 0.4F * static_cast<float>(i);
      top_p[i] = i % 2 == 0 ? 1.0F : 0.8F;
      min_p[i] = i == 4 ? 0.1F : 0.0F;
      top_k[i] = i == 2 ? 30 : 0;
      seed[i] = 100 - 70 * static_cast<std::int64_t>(i);
      sample_index[i] = static_cast<std::int64_t>(i / 2);
      output[i] = static_cast<std::int64_t>(10 + i);
    }
    const SamplingRows params{temperature.data(), top_k.data(),        top_p.data(), min_p.data(),
                              seed.data(),        sample_index.data(), output.data()};
    std::vector<std::int64_t> ids(n), wanted(n);
    device.sample(there, params, ids.data());
    host.sample(logits, params, wanted.data());
    CHECK(ids == wanted);
    for (const at::Tensor& token_map : {at::Tensor(), map}) {
      std::vector<std::int64_t> best(n * kCount), best_wanted(n * kCount);
      std::vector<float> gains(n * kCount), gains_wanted(n * kCount);
      device.draft_candidates(there, params, token_map, kCount, best.data(), gains.data());
      host.draft_candidates(logits, params, token_map, kCount, best_wanted.data(),
                            gains_wanted.data());
      CHECK(best == best_wanted);
      for (std::size_t i = 0; i < gains.size(); ++i) {
        CHECK(gains[i] == gains_wanted[i] ||
              std::fabs(gains[i] - gains_wanted[i]) <= 1e-6F + 1e-5F * std::fabs(gains_wanted[i]));
      }
    }
  }
}

void test_no_device() {
  emulated::num_devices = 0;
  std::string said;
  try {
    CudaGpu gpu;
  } catch (const Error& error) {
    said = error.what();
  }
  CHECK(said.find("none is found") != std::string::npos);
  CHECK(said.find("nvidia-smi") != std::string::npos);
}

}  // namespace

int main() {
  {
    const auto gpu = std::make_shared<CudaGpu>();
    test_device(gpu);
    test_streams(*gpu);
    test_moved_rows(gpu);
    test_sampling(gpu);
  }
  CHECK(emulated::allocations.empty());
  CHECK(emulated::streams.empty());
  test_no_device();
  return check_result();
}
