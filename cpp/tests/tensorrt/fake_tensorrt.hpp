// FakeTensorRT: engines on the FakeGpu, whose graphs are functions over host tensors. It holds its
// callers to what the real one wants of them: sizes within the profile, an address for everything,
// caches in place, scratch memory, and nothing but memory of the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <trtspec/runtime/tensorrt.hpp>
#include <utility>
#include <vector>

#include "fake_gpu.hpp"

namespace trtspec {

// An input or output; each size is a number, a name, or names multiplied: "batch*rows".
struct FakeTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::string> sizes;
};

// What an engine file stands for.
struct FakePlan {
  std::vector<FakeTensor> inputs;
  std::vector<FakeTensor> outputs;  // caches last, named as the input and "_out"
  std::vector<std::map<std::string, SizeLimits>> profiles;
  // The outputs but for the caches, which it writes in place.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> graph;
};

class FakeContext final : public TensorRTContext {
 public:
  FakeContext(std::shared_ptr<const FakePlan> plan, std::size_t profile,
              std::shared_ptr<FakeGpu> gpu)
      : plan_(std::move(plan)), profile_(profile), gpu_(std::move(gpu)) {}

  void set_input_sizes(const std::string& name, std::span<const std::int64_t> sizes) override {
    const SizeLimits& limits = plan_->profiles[profile_].at(name);
    bool fits = sizes.size() == limits.smallest.size();
    for (std::size_t i = 0; fits && i < sizes.size(); ++i) {
      fits = limits.smallest[i] <= sizes[i] && sizes[i] <= limits.largest[i];
    }
    if (!fits) throw std::logic_error(name + " is beyond its profile");
    sizes_[name].assign(sizes.begin(), sizes.end());
  }

  std::vector<std::int64_t> output_sizes(const std::string& name) const override {
    std::map<std::string, std::int64_t> named;
    for (const FakeTensor& input : plan_->inputs) {
      const auto found = sizes_.find(input.name);
      if (found == sizes_.end()) throw std::logic_error(input.name + " has no size yet");
      for (std::size_t i = 0; i < input.sizes.size(); ++i) {
        const auto [known, is_new] = named.emplace(input.sizes[i], found->second[i]);
        if (!is_new && known->second != found->second[i]) {
          throw std::logic_error(input.sizes[i] + " is two sizes at once");
        }
      }
    }
    for (const FakeTensor& output : plan_->outputs) {
      if (output.name != name) continue;
      std::vector<std::int64_t> sizes;
      for (const std::string& size : output.sizes) sizes.push_back(size_of(size, named));
      return sizes;
    }
    throw std::logic_error(name + " is no output");
  }

  void set_address(const std::string& name, void* data) override { addresses_[name] = data; }

  void enqueue() override {
    std::vector<at::Tensor> inputs, outputs;
    for (const FakeTensor& tensor : plan_->inputs) {
      inputs.push_back(at_device(tensor, sizes_.at(tensor.name)));
    }
    for (const FakeTensor& tensor : plan_->outputs) {
      const std::size_t cut = tensor.name.rfind("_out");
      if (cut != std::string::npos) {
        if (addresses_.at(tensor.name) == addresses_.at(tensor.name.substr(0, cut))) continue;
        throw std::logic_error(tensor.name + " is not in place");
      }
      outputs.push_back(at_device(tensor, output_sizes(tensor.name)));
    }
    gpu_->enqueue([plan = plan_, inputs, outputs] {
      const std::vector<at::Tensor> made = plan->graph(inputs);
      if (made.size() != outputs.size()) throw std::logic_error("a graph made other outputs");
      for (std::size_t i = 0; i < made.size(); ++i) {
        if (made[i].sizes() != outputs[i].sizes()) throw std::logic_error("another size");
        std::memcpy(outputs[i].data_ptr(), made[i].const_data_ptr(), made[i].nbytes());
      }
    });
  }

 private:
  static std::int64_t size_of(const std::string& text,
                              const std::map<std::string, std::int64_t>& named) {
    if (std::isdigit(static_cast<unsigned char>(text[0]))) return std::stoll(text);
    const std::size_t star = text.find('*');
    if (star == std::string::npos) return named.at(text);
    return named.at(text.substr(0, star)) * size_of(text.substr(star + 1), named);
  }

  at::Tensor at_device(const FakeTensor& tensor, const std::vector<std::int64_t>& sizes) const {
    void* data = addresses_.at(tensor.name);
    at::Tensor made = at::from_blob(data, sizes, at::dtype(tensor.dtype));
    gpu_->own(data, made.nbytes());
    return made;
  }

  std::shared_ptr<const FakePlan> plan_;
  std::size_t profile_;
  std::shared_ptr<FakeGpu> gpu_;
  std::map<std::string, std::vector<std::int64_t>> sizes_;
  std::map<std::string, void*> addresses_;
};

class FakeEngine final : public TensorRTEngine {
 public:
  FakeEngine(FakePlan plan, std::shared_ptr<FakeGpu> gpu)
      : plan_(std::make_shared<const FakePlan>(std::move(plan))), gpu_(std::move(gpu)) {
    for (const FakeTensor& input : plan_->inputs) {
      tensors_.push_back({input.name, input.dtype, true});
    }
    for (const FakeTensor& output : plan_->outputs) {
      tensors_.push_back({output.name, output.dtype, false});
    }
  }

  const std::vector<EngineTensor>& tensors() const override { return tensors_; }
  std::int64_t num_profiles() const override { return std::ssize(plan_->profiles); }
  SizeLimits limits(const std::string& input, std::int64_t profile) const override {
    return plan_->profiles.at(static_cast<std::size_t>(profile)).at(input);
  }
  std::size_t scratch_bytes() const override { return 4096; }
  std::unique_ptr<TensorRTContext> new_context(std::int64_t profile,
                                               const GpuMemory& scratch) override {
    if (scratch.size() < scratch_bytes()) throw std::logic_error("too little scratch memory");
    gpu_->own(scratch.data(), scratch.size());
    return std::make_unique<FakeContext>(plan_, static_cast<std::size_t>(profile), gpu_);
  }

 private:
  std::shared_ptr<const FakePlan> plan_;
  std::shared_ptr<FakeGpu> gpu_;
  std::vector<EngineTensor> tensors_;
};

class FakeTensorRT final : public TensorRT {
 public:
  // What the contents of an engine file stand for; the other string is the file's path.
  using Read = std::function<FakePlan(std::string_view, const std::string&)>;

  explicit FakeTensorRT(Read read)
      : read_(std::move(read)), fake_(std::make_shared<FakeGpu>()), gpu_(fake_) {}

  std::string version() const override { return "tensorrt_rtx 1.7.0"; }
  const std::shared_ptr<Gpu>& gpu() const override { return gpu_; }
  FakeGpu& fake() { return *fake_; }
  std::unique_ptr<TensorRTEngine> deserialize(std::span<const char> plan,
                                              const std::string& path) override {
    return std::make_unique<FakeEngine>(read_({plan.data(), plan.size()}, path), fake_);
  }

 private:
  Read read_;
  std::shared_ptr<FakeGpu> fake_;
  std::shared_ptr<Gpu> gpu_;
};

}  // namespace trtspec
