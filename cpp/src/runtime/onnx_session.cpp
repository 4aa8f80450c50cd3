#include "trtspec/runtime/onnx_session.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <trtspec/error.hpp>
#include <utility>

namespace trtspec {

namespace {

// Prefix of a weight's name in a graph, which wraps its network.
constexpr const char* kModel = "model.";

// TensorProto's numbers.
constexpr std::array<std::pair<at::ScalarType, int>, 10> kTypes{{{at::kFloat, 1},
                                                                 {at::kByte, 2},
                                                                 {at::kChar, 3},
                                                                 {at::kShort, 5},
                                                                 {at::kInt, 6},
                                                                 {at::kLong, 7},
                                                                 {at::kBool, 9},
                                                                 {at::kHalf, 10},
                                                                 {at::kDouble, 11},
                                                                 {at::kBFloat16, 16}}};

int type_of(at::ScalarType dtype) {
  for (const auto& [known, number] : kTypes) {
    if (known == dtype) return number;
  }
  throw std::logic_error("a dtype that no ONNX tensor has");
}

at::ScalarType dtype_of(int type) {
  for (const auto& [known, number] : kTypes) {
    if (number == type) return known;
  }
  throw Error("an ONNX graph returns elements of type " + std::to_string(type) +
              ", which torch has not");
}

}  // namespace

OnnxSession::OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, const std::string& path,
                         const Weights& weights, std::size_t num_caches)
    : runtime_(std::move(runtime)),
      num_caches_(num_caches),
      weights_(weights),
      session_(nullptr, Release{runtime_}) {
  if (!std::filesystem::is_regular_file(path)) {
    throw Error(path + " is missing; rebuild the engine with trtspec-build");
  }
  for (const auto& [name, tensor] : weights_) {
    initializers_.emplace_back(kModel + name, share(tensor));
  }
  try {
    load(path);
    input_names_ = names(/*of_inputs=*/true);
    output_names_ = names(/*of_inputs=*/false);
  } catch (const Error& error) {
    throw Error(path + " cannot be loaded (" + error.what() +
                "); rebuild the engine with trtspec-build");
  }
}

OnnxSession::~OnnxSession() = default;

void OnnxSession::load(const std::string& path) {
  const ort::Api& api = runtime_->api();
  ort::SessionOptions* made = nullptr;
  runtime_->check(api.create_session_options(&made));
  const auto release = [&api](ort::SessionOptions* options) {
    api.release_session_options(options);
  };
  const std::unique_ptr<ort::SessionOptions, decltype(release)> options(made, release);
  runtime_->check(api.set_log_severity(made, ort::kErrors));
  runtime_->check(api.set_num_threads(made, at::get_num_threads()));
  for (const auto& [name, value] : initializers_) {
    runtime_->check(api.add_initializer(made, name.c_str(), value.get()));
  }
  ort::Session* session = nullptr;
  runtime_->check(api.create_session(runtime_->env(), path.c_str(), made, &session));
  session_.reset(session);
}

std::vector<std::string> OnnxSession::names(bool of_inputs) const {
  const ort::Api& api = runtime_->api();
  std::size_t count = 0;
  ort::Allocator* allocator = nullptr;
  runtime_->check(api.default_allocator(&allocator));
  runtime_->check(of_inputs ? api.input_count(session_.get(), &count)
                            : api.output_count(session_.get(), &count));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    runtime_->check(of_inputs ? api.input_name(session_.get(), i, allocator, &name)
                              : api.output_name(session_.get(), i, allocator, &name));
    names.emplace_back(name);
    runtime_->check(api.allocator_free(allocator, name));
  }
  return names;
}

std::vector<at::Tensor> OnnxSession::run(std::vector<at::Tensor> inputs) {
  if (inputs.size() != input_names_.size()) {
    throw std::logic_error("a graph of " + std::to_string(input_names_.size()) +
                           " inputs was given " + std::to_string(inputs.size()));
  }
  std::vector<Owned<ort::Value>> shared;
  std::vector<const ort::Value*> given;
  std::vector<const char*> given_names, wanted_names;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    shared.push_back(share(inputs[i]));
    given.push_back(shared.back().get());
    given_names.push_back(input_names_[i].c_str());
  }
  for (const std::string& name : output_names_) wanted_names.push_back(name.c_str());
  // Null where it allocates the output itself; a cache is written where it lies.
  const std::size_t count = output_names_.size() - num_caches_;
  std::vector<ort::Value*> wanted(output_names_.size(), nullptr);
  for (std::size_t i = 0; i < num_caches_; ++i) {
    wanted[count + i] = shared[inputs.size() - num_caches_ + i].get();
  }
  runtime_->check(runtime_->api().run(session_.get(), nullptr, given_names.data(), given.data(),
                                      given.size(), wanted_names.data(), wanted.size(),
                                      wanted.data()));
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < count; ++i) {
    outputs.push_back(take(Owned<ort::Value>(wanted[i], Release{runtime_})));
  }
  return outputs;
}

// A value over the tensor's memory.
OnnxSession::Owned<ort::Value> OnnxSession::share(const at::Tensor& tensor) const {
  if (!tensor.is_contiguous()) throw std::logic_error("an ONNX graph reads contiguous tensors");
  ort::Value* value = nullptr;
  runtime_->check(runtime_->api().create_tensor(
      runtime_->memory(), const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes(),
      tensor.sizes().data(), tensor.sizes().size(), type_of(tensor.scalar_type()), &value));
  return {value, Release{runtime_}};
}

// A tensor over the memory of a value, which lives as long as it does.
at::Tensor OnnxSession::take(Owned<ort::Value> value) const {
  const ort::Api& api = runtime_->api();
  void* data = nullptr;
  runtime_->check(api.tensor_data(value.get(), &data));
  ort::TensorInfo* made = nullptr;
  runtime_->check(api.tensor_info(value.get(), &made));
  const auto release = [&api](ort::TensorInfo* info) { api.release_tensor_info(info); };
  const std::unique_ptr<ort::TensorInfo, decltype(release)> info(made, release);
  int type = 0;
  runtime_->check(api.element_type(made, &type));
  const at::ScalarType dtype = dtype_of(type);
  std::shared_ptr<ort::Value> kept = std::move(value);
  return at::from_blob(data, sizes_of(made), [kept](void*) {}, at::dtype(dtype));
}

std::vector<std::int64_t> OnnxSession::sizes_of(const ort::TensorInfo* info) const {
  std::size_t dim = 0;
  runtime_->check(runtime_->api().num_dimensions(info, &dim));
  std::vector<std::int64_t> sizes(dim);
  runtime_->check(runtime_->api().dimensions(info, sizes.data(), dim));
  return sizes;
}

std::vector<std::int64_t> OnnxSession::input_sizes(std::size_t index) const {
  const ort::Api& api = runtime_->api();
  ort::TypeInfo* made = nullptr;
  runtime_->check(api.input_type(session_.get(), index, &made));
  const auto release = [&api](ort::TypeInfo* type) { api.release_type_info(type); };
  const std::unique_ptr<ort::TypeInfo, decltype(release)> type(made, release);
  const ort::TensorInfo* info = nullptr;  // part of the type
  runtime_->check(api.to_tensor_info(made, &info));
  return info ? sizes_of(info) : std::vector<std::int64_t>();
}

}  // namespace trtspec
