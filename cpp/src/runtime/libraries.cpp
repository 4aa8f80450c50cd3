#include "trtspec/runtime/libraries.hpp"

#include <trtspec/host.hpp>

namespace trtspec {

Libraries Libraries::load(const EngineFolder& folder, const Paths& paths) {
  Libraries libraries;
  if (folder.build.backend == Backend::onnx) {
    libraries.onnxruntime = OnnxRuntime::load(paths.onnxruntime);
  }
  if (folder.build.backend == Backend::tensorrt) {
    libraries.tensorrt = TensorRT::load(paths.tensorrt);
    folder.check_tensorrt(libraries.tensorrt->gpu()->compute_capability(),
                          libraries.tensorrt->version());
  }
  return libraries;
}

std::shared_ptr<Device> Libraries::make_device() const {
  if (tensorrt) return std::make_shared<GpuDevice>(tensorrt->gpu());
  return std::make_shared<HostDevice>();
}

std::int64_t Libraries::free_memory() const {
  return tensorrt ? tensorrt->gpu()->free_memory() : available_memory();
}

}  // namespace trtspec
