#include "trtspec/runtime/libraries.hpp"

#include <unistd.h>

#include <fstream>

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

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::int64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace trtspec
