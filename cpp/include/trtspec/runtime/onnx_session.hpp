// OnnxSession: one ONNX graph on ONNX Runtime, its caches written in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <trtspec/runtime/onnx_runtime.hpp>
#include <trtspec/runtime/session.hpp>
#include <trtspec/runtime/weights.hpp>
#include <utility>
#include <vector>

namespace trtspec {

// Runs a graph of trtspec/backends/slots/lowering.py on the CPU, with as many threads as torch has.
// Weights are handed over by reference, so sessions over the same tensors share their memory.
class OnnxSession final : public Session {
 public:
  // weights: by name in the network, more than the graph has if need be. num_caches: the last
  // inputs, and as many last outputs, which are the same memory. Throws Error for a file that is
  // missing or cannot be loaded.
  OnnxSession(std::shared_ptr<const OnnxRuntime> runtime, const std::string& path,
              const Weights& weights, std::size_t num_caches = 0);
  ~OnnxSession() override;

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

  // The sizes of an input, -1 for one that is free.
  std::vector<std::int64_t> input_sizes(std::size_t index) const;

 private:
  struct Release {
    std::shared_ptr<const OnnxRuntime> runtime;
    void operator()(ort::Value* value) const { runtime->api().release_value(value); }
    void operator()(ort::Session* session) const { runtime->api().release_session(session); }
  };
  template <class T>
  using Owned = std::unique_ptr<T, Release>;

  Owned<ort::Value> share(const at::Tensor& tensor) const;
  at::Tensor take(Owned<ort::Value> value) const;
  std::vector<std::int64_t> sizes_of(const ort::TensorInfo* info) const;
  void load(const std::string& path);
  std::vector<std::string> names(bool of_inputs) const;

  std::shared_ptr<const OnnxRuntime> runtime_;
  std::size_t num_caches_;
  Weights weights_;
  std::vector<std::pair<std::string, Owned<ort::Value>>> initializers_;
  Owned<ort::Session> session_;  // behind the initialisers, which outlive it
  std::vector<std::string> input_names_;
  std::vector<std::string> output_names_;
};

}  // namespace trtspec
