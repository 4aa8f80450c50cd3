// TensorRTSession: one lowered graph as a TensorRT engine, its caches written in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <trtspec/runtime/session.hpp>
#include <trtspec/runtime/tensorrt.hpp>
#include <vector>

namespace trtspec {

// Runs an engine of a graph of trtspec/backends/slots/lowering.py. Caches among the inputs lie on
// the GPU, and so do logits among the outputs, which hold until the next call (see Device).
// Everything else is on the host: it is copied to the GPU before a call, or back behind it. A call
// waits until all is done.
class TensorRTSession final : public Session {
 public:
  // num_caches: the last inputs, and as many last outputs, which are the same memory. Throws Error
  // for a file that is missing or that TensorRT refuses.
  TensorRTSession(std::shared_ptr<TensorRT> tensorrt, const std::string& path,
                  std::size_t num_caches = 0);

  // Throws Error if the engine was not built for inputs of these sizes.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

  // Of the first dimension of the first input, the most that any profile takes.
  std::int64_t max_batch() const;
  // Whether calls may differ in the last dimension of an input.
  bool varies(std::size_t input) const;

 private:
  // The execution context of a profile, and what inputs it takes, in their order.
  struct Profile {
    std::unique_ptr<TensorRTContext> context;
    std::vector<SizeLimits> limits;
  };

  void check_caches() const;
  Profile& find_profile(const std::vector<at::Tensor>& inputs);
  void stage(TensorRTContext& context, const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> make_outputs(TensorRTContext& context);
  void fetch(const std::vector<at::Tensor>& outputs);

  std::shared_ptr<TensorRT> tensorrt_;
  std::string path_;
  std::size_t num_caches_;
  std::unique_ptr<TensorRTEngine> engine_;
  std::vector<EngineTensor> inputs_;
  std::vector<EngineTensor> outputs_;
  GpuMemory scratch_;  // of all profiles, of which one runs at a time
  std::vector<Profile> profiles_;
  std::vector<std::byte> host_inputs_;  // what is copied to the GPU, in one piece
  GpuMemory device_inputs_;
  GpuMemory device_outputs_;
};

}  // namespace trtspec
