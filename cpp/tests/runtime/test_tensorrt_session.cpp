// A TensorRT session over stand-ins for TensorRT and CUDA: what it copies, which profile it runs,
// and where caches lie.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <trtspec/error.hpp>
#include <trtspec/files.hpp>
#include <trtspec/runtime/device.hpp>
#include <trtspec/runtime/tensorrt_session.hpp>

#include "check.hpp"
#include "mapped_from.hpp"
#include "tensorrt/fake_tensorrt.hpp"

namespace trtspec {

// None is loaded here.
std::shared_ptr<TensorRT> TensorRT::load(const std::string&) {
  throw std::logic_error("this test makes its own");
}

}  // namespace trtspec

namespace {

using namespace trtspec;

constexpr std::int64_t kSlots = 4;
constexpr std::int64_t kLength = 6;

// Row r of slot b holds x[b, r]; it is written to the cache at starts[b] + r, and the sum over the
// slot's cache and twice the row are returned.
std::vector<at::Tensor> write_and_sum(const std::vector<at::Tensor>& inputs) {
  const at::Tensor &x = inputs[0], &starts = inputs[1], &cache = inputs[2];
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    const std::int64_t start = starts.const_data_ptr<std::int64_t>()[b];
    cache.select(0, b).narrow(0, start, x.size(1)).copy_(x.select(0, b));
  }
  return {cache.sum({1}), x.mul(2)};
}

FakePlan plan() {
  const SizeLimits cache{{1, kLength}, {kSlots, kLength}};
  const SizeLimits one{{1, kLength}, {1, kLength}};
  return {.inputs = {{"x", at::kFloat, {"batch", "rows"}},
                     {"starts", at::kLong, {"batch"}},
                     {"k_cache_0", at::kFloat, {"batch", "6"}}},
          .outputs = {{"sums", at::kFloat, {"batch"}},
                      {"twice", at::kFloat, {"batch", "rows"}},
                      {"k_cache_0_out", at::kFloat, {"batch", "6"}}},
          .profiles = {{{"x", {{1, 1}, {kSlots, 2}}},
                        {"starts", {{1}, {kSlots}}},
                        {"k_cache_0", cache}},
                       {{"x", {{1, 1}, {1, 5}}}, {"starts", {{1}, {1}}}, {"k_cache_0", one}}},
          .graph = write_and_sum};
}

// An engine file; the fake makes the same of any contents.
struct File {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("trtspec_" + std::to_string(::getpid()) + ".engine"))
                         .string();
  File() { write_file(path, "plan"); }
  ~File() { std::filesystem::remove(path); }
};

std::shared_ptr<FakeTensorRT> fake(FakePlan made = plan()) {
  return std::make_shared<FakeTensorRT>([made](std::string_view contents, const std::string& path) {
    CHECK_EQ(contents, "plan");
    CHECK_EQ(mapped_from(contents.data()), path);  // large, and not copied
    return made;
  });
}

at::Tensor read(Gpu& gpu, const at::Tensor& cache) {
  at::Tensor copy = at::empty(cache.sizes(), cache.options());
  gpu.copy_to_host(copy.data_ptr(), cache.data_ptr(), cache.nbytes());
  gpu.synchronize();
  return copy;
}

at::Tensor starts(std::vector<std::int64_t> values) {
  at::Tensor made = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), made.mutable_data_ptr<std::int64_t>());
  return made;
}

void test_calls() {
  const File file;
  const auto tensorrt = fake();
  {
    GpuDevice memory(tensorrt->gpu());
    TensorRTSession session(tensorrt, file.path, 1);
    CHECK_EQ(session.max_batch(), kSlots);
    const at::Tensor cache = memory.zeros({kSlots, kLength}, at::kFloat);
    const at::Tensor x = at::arange(1, 5, at::kFloat).view({2, 2});
    // Slots 1 and 2 of the cache, as a call over some of the sequences has them.
    auto outputs = session.run({x, starts({0, 3}), cache.narrow(0, 1, 2)});
    CHECK_EQ(outputs.size(), 2U);
    CHECK(outputs[0].equal(x.sum({1})));
    CHECK(outputs[1].equal(x.mul(2)));
    at::Tensor expected = at::zeros({kSlots, kLength});
    expected.select(0, 1).narrow(0, 0, 2).copy_(x.select(0, 0));
    expected.select(0, 2).narrow(0, 3, 2).copy_(x.select(0, 1));
    CHECK(read(*tensorrt->gpu(), cache).equal(expected));

    // More rows than the first profile takes; staging grows, and what was returned stays.
    const at::Tensor wide = at::ones({1, 5});
    const auto more = session.run({wide, starts({0}), cache.narrow(0, 3, 1)});
    CHECK(more[0].equal(at::full({1}, 5.0F)));
    CHECK(outputs[1].equal(x.mul(2)));

    memory.clear(cache.select(0, 1));
    expected.select(0, 1).zero_();
    expected.select(0, 3).narrow(0, 0, 5).fill_(1);
    CHECK(read(*tensorrt->gpu(), cache).equal(expected));
  }
  CHECK_EQ(tensorrt->fake().num_allocations(), 0U);
}

void test_moved_rows() {
  const auto tensorrt = fake();
  GpuDevice device(tensorrt->gpu());
  HostDevice host;
  std::vector<at::Tensor> ours, theirs;
  for (int i = 0; i < 3; ++i) {
    ours.push_back(host.zeros({2, 5, 4}, at::kHalf));
    ours.back().copy_(at::arange(i, 40 + i, at::kFloat).view({2, 5, 4}));
    theirs.push_back(device.zeros({2, 5, 4}, at::kHalf));
    CHECK(read(*tensorrt->gpu(), theirs.back()).equal(at::zeros({2, 5, 4}, at::kHalf)));
    tensorrt->gpu()->copy_to_device(theirs.back().data_ptr(), ours.back().data_ptr(),
                                    ours.back().nbytes());
    tensorrt->gpu()->synchronize();
  }
  const std::vector<std::int64_t> src = {3, 4, 9}, dst = {1, 3, 5};
  host.move_rows(ours, 4, src, dst);
  device.move_rows(theirs, 4, src, dst);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CHECK(read(*tensorrt->gpu(), theirs[i]).equal(ours[i]));
    // Row 3 of the first cache began with its 12th element.
    const auto first = static_cast<std::int64_t>(12 + i);
    CHECK(ours[i].select(0, 0).select(0, 1).equal(
        at::arange(first, first + 4, at::kFloat).to(at::kHalf)));
  }
  const std::vector<std::int64_t> few = {0};
  CHECK_THROWS(device.move_rows(theirs, 4, src, few));
}

// Logits stay on the GPU, and what is sampled from them there is what the host samples.
void test_logits() {
  const File file;
  constexpr std::int64_t kRows = 3, kVocab = 300;
  const SizeLimits limits{{1, kVocab}, {kRows, kVocab}};
  const auto tensorrt =
      fake({.inputs = {{"ready", at::kFloat, {"rows", "300"}}},
            .outputs = {{"logits", at::kFloat, {"rows", "300"}},
                        {"hidden", at::kFloat, {"rows", "300"}}},
            .profiles = {{{"ready", limits}}},
            .graph = [](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
              return {inputs[0].mul(4), inputs[0].mul(2)};
            }});
  TensorRTSession session(tensorrt, file.path);
  GpuDevice gpu(tensorrt->gpu());
  HostDevice host;
  const at::Tensor ready = at::arange(kRows * kVocab, at::kFloat).sin().view({kRows, kVocab});
  const at::Tensor expected = ready.mul(4);
  const at::Tensor token_map = at::arange(7, 7 + 2 * kVocab, 2, at::kLong);
  const std::vector<float> temperature = {0.0F, 0.8F, 1.3F}, top_p = {1.0F, 0.9F, 1.0F};
  const std::vector<float> min_p = {0.0F, 0.0F, 0.05F};
  const std::vector<std::int32_t> top_k = {0, 40, 0};
  const std::vector<std::int64_t> seed = {1, -2, 3}, sample_index = {0, 0, 4}, output = {5, 6, 7};
  const SamplingRows params{temperature.data(), top_k.data(),        top_p.data(), min_p.data(),
                            seed.data(),        sample_index.data(), output.data()};
  for (int round = 0; round < 2; ++round) {
    const auto outputs = session.run({ready});
    CHECK(outputs[1].equal(ready.mul(2)));
    CHECK(read(*tensorrt->gpu(), outputs[0]).equal(expected));
    std::vector<std::int64_t> ids(kRows), wanted(kRows);
    gpu.sample(outputs[0], params, ids.data());
    host.sample(expected, params, wanted.data());
    CHECK(ids == wanted);
    constexpr std::int64_t kCount = 4;
    for (const at::Tensor& map : {at::Tensor(), token_map}) {
      std::vector<std::int64_t> best(kRows * kCount), best_wanted(kRows * kCount);
      std::vector<float> gains(kRows * kCount), gains_wanted(kRows * kCount);
      gpu.draft_candidates(outputs[0], params, map, kCount, best.data(), gains.data());
      host.draft_candidates(expected, params, map, kCount, best_wanted.data(), gains_wanted.data());
      CHECK(best == best_wanted);
      CHECK(gains == gains_wanted);
      CHECK(!map.defined() || best[0] % 2 == 1);
    }
    // Rows of several calls in one list.
    const at::Tensor all = gpu.zeros({5, kVocab}, at::kFloat);
    at::Tensor placed = host.zeros({5, kVocab}, at::kFloat);
    const std::vector<std::int64_t> indices = {1, 2, 4};
    gpu.place_rows(all, indices, outputs[0]);
    host.place_rows(placed, indices, expected);
    CHECK(read(*tensorrt->gpu(), all).equal(placed));
    CHECK(placed.select(0, 4).equal(expected.select(0, 2)));
  }
}

// What an error says.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

bool has(const std::string& text, std::initializer_list<const char*> parts) {
  bool found = true;
  for (const char* part : parts) {
    if (text.find(part) != std::string::npos) continue;
    std::cout << "'" << part << "' is not in '" << text << "'\n";
    found = false;
  }
  return found;
}

void test_refusals() {
  const File file;
  const auto tensorrt = fake();
  GpuDevice memory(tensorrt->gpu());
  TensorRTSession session(tensorrt, file.path, 1);
  const at::Tensor cache = memory.zeros({kSlots + 1, kLength}, at::kFloat);
  CHECK(
      has(refusal([&] { session.run({at::ones({2, 3}), starts({0, 0}), cache.narrow(0, 0, 2)}); }),
          {file.path.c_str(), "profile verify takes x from [1, 1] to [4, 2], not [2, 3]",
           "profile prefill takes x from [1, 1] to [1, 5], not [2, 3]", "max_batch_size"}));
  CHECK(has(refusal([&] { session.run({at::ones({5, 1}), starts({0, 0, 0, 0, 0}), cache}); }),
            {"to [4, 2], not [5, 1]", "rebuild the engine"}));
  // Mistakes of the runtime's own.
  CHECK_THROWS(session.run({at::ones({1, 1}), starts({0})}));
  CHECK_THROWS(session.run({at::ones({1, 1}), at::ones({1}), cache.narrow(0, 0, 1)}));
  CHECK_THROWS(session.run({at::ones({2, 2}).t(), starts({0, 0}), cache.narrow(0, 0, 2)}));

  CHECK(has(refusal([&] { TensorRTSession(tensorrt, file.path + ".not", 1); }),
            {".engine.not cannot be read", "rebuild the engine with trtspec-build"}));
  FakePlan other = plan();
  other.outputs[2].name = "v_cache_0_out";
  CHECK(has(refusal([&] { TensorRTSession(fake(other), file.path, 1); }),
            {"inputs x, starts, k_cache_0", "v_cache_0_out", "the last 1", "report it"}));
}

// Memory that is too little is told of, and nothing is left behind.
void test_memory() {
  const auto gpu = std::make_shared<FakeGpu>(std::size_t{1} << 16);
  GpuDevice memory(gpu);
  const at::Tensor cache = memory.zeros({1 << 13}, at::kFloat);
  CHECK(has(refusal([&] { memory.zeros({1 << 14}, at::kFloat); }),
            {"65536 bytes are needed", "32768 are free"}));
  CHECK_EQ(gpu->num_allocations(), 1U);
}

}  // namespace

int main() {
  test_calls();
  test_moved_rows();
  test_logits();
  test_refusals();
  test_memory();
  return check_result();
}
