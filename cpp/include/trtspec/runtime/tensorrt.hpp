// TensorRT: what the runtime needs of TensorRT, or of TensorRT-RTX, which has the same API.
//
// The real one is in cpp/src/tensorrt, and is built where CMake is given TENSORRT_ROOT; everything
// over this interface is built, and tested over stand-ins, without it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <trtspec/runtime/gpu.hpp>
#include <vector>

namespace trtspec {

// An input or output of an engine.
struct EngineTensor {
  std::string name;
  at::ScalarType dtype;
  bool is_input;
};

// The smallest and the largest sizes of an input.
struct SizeLimits {
  std::vector<std::int64_t> smallest;
  std::vector<std::int64_t> largest;
};

// An engine with shapes and addresses of its own, for one optimisation profile. What it refuses
// throws Error with TensorRT's own words.
class TensorRTContext {
 public:
  virtual ~TensorRTContext() = default;

  virtual void set_input_sizes(const std::string& name, std::span<const std::int64_t> sizes) = 0;
  // Of an output, once all inputs have theirs.
  virtual std::vector<std::int64_t> output_sizes(const std::string& name) const = 0;
  // Memory of the device, of an input or output.
  virtual void set_address(const std::string& name, void* data) = 0;
  // Runs the engine once, behind what the device was given before; does not wait.
  virtual void enqueue() = 0;
};

class TensorRTEngine {
 public:
  virtual ~TensorRTEngine() = default;

  virtual const std::vector<EngineTensor>& tensors() const = 0;
  virtual std::int64_t num_profiles() const = 0;
  virtual SizeLimits limits(const std::string& input, std::int64_t profile) const = 0;
  // Bytes of device memory that a context works in; no two that share it may run at a time.
  virtual std::size_t scratch_bytes() const = 0;
  // `scratch` outlives the context, as does the engine.
  virtual std::unique_ptr<TensorRTContext> new_context(std::int64_t profile,
                                                       const GpuMemory& scratch) = 0;
};

class TensorRT {
 public:
  // TensorRT's shared library at `path`, or with "" the one that the build was made for, and the
  // first CUDA device that is visible. Throws Error, naming what was tried and what to do, if there
  // is none of either, or if the program was built without TensorRT.
  static std::shared_ptr<TensorRT> load(const std::string& path = "");
  virtual ~TensorRT() = default;

  // As in the environment of an engine folder: "tensorrt 11.1.0.106", "tensorrt_rtx 1.7.1.116".
  virtual std::string version() const = 0;
  virtual const std::shared_ptr<Gpu>& gpu() const = 0;
  // From the contents of an engine file; `path` is for messages. Throws Error if it is refused.
  virtual std::unique_ptr<TensorRTEngine> deserialize(std::span<const char> plan,
                                                      const std::string& path) = 0;
};

}  // namespace trtspec
