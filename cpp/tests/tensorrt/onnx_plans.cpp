// TensorRT::load of trtspec_benchmark_fake: an engine file says in JSON which ONNX graph it stands
// for (see tests/cpp/fake_engines.py), and ONNX Runtime runs that.
#include <array>
#include <trtspec/error.hpp>
#include <trtspec/json.hpp>
#include <trtspec/runtime/onnx_runtime.hpp>
#include <trtspec/runtime/onnx_session.hpp>

#include "fake_tensorrt.hpp"

namespace trtspec {

namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 5> kTypes{{{"float32", at::kFloat},
                                                                        {"float16", at::kHalf},
                                                                        {"int64", at::kLong},
                                                                        {"int32", at::kInt},
                                                                        {"bool", at::kBool}}};

at::ScalarType read_dtype(const Json& json) {
  for (const auto& [name, dtype] : kTypes) {
    if (json.as_string() == name) return dtype;
  }
  json.refuse("this is no dtype");
}

std::vector<FakeTensor> read_tensors(const Json& json) {
  std::vector<FakeTensor> tensors;
  for (const Json& tensor : json.items()) {
    FakeTensor& made = tensors.emplace_back();
    made.name = tensor.at("name").as_string();
    made.dtype = read_dtype(tensor.at("dtype"));
    for (const Json& size : tensor.at("sizes").items()) made.sizes.push_back(size.as_string());
  }
  return tensors;
}

std::vector<std::int64_t> read_sizes(const Json& json) {
  std::vector<std::int64_t> sizes;
  for (const Json& size : json.items()) sizes.push_back(size.as_int());
  return sizes;
}

FakePlan read_plan(std::string_view text, const std::string& path,
                   const std::shared_ptr<const OnnxRuntime>& onnxruntime) {
  const Json json = Json::parse(text, path);
  FakePlan plan{.inputs = read_tensors(json.at("inputs")),
                .outputs = read_tensors(json.at("outputs")),
                .profiles = {},
                .graph = {}};
  for (const Json& profile : json.at("profiles").items()) {
    auto& limits = plan.profiles.emplace_back();
    for (const auto& [name, shapes] : profile.members()) {
      limits[name] = {read_sizes(shapes.items()[0]), read_sizes(shapes.items()[2])};
    }
  }
  // The graph finds its weights by itself, in the files beside it.
  const auto session =
      std::make_shared<OnnxSession>(onnxruntime, json.at("graph").as_string(), Weights(),
                                    static_cast<std::size_t>(json.at("num_caches").as_int()));
  plan.graph = [session](std::vector<at::Tensor> inputs) {
    return session->run(std::move(inputs));
  };
  return plan;
}

}  // namespace

std::shared_ptr<TensorRT> TensorRT::load(const std::string&) {
  return std::make_shared<FakeTensorRT>(
      [onnxruntime = OnnxRuntime::load()](std::string_view text, const std::string& path) {
        return read_plan(text, path, onnxruntime);
      });
}

}  // namespace trtspec
