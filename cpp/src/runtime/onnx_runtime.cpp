#include "trtspec/runtime/onnx_runtime.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <trtspec/error.hpp>
#include <vector>

// Where the build found the library; "" if it did not.
#ifndef TRTSPEC_ONNXRUNTIME
#define TRTSPEC_ONNXRUNTIME ""
#endif

namespace trtspec {

namespace {

// The first version of the API with all functions that are used.
constexpr std::uint32_t kApiVersion = 8;
constexpr int kDeviceAllocator = 0;
constexpr int kDefaultMemory = 0;

// What the library exports.
struct ApiBase {
  const ort::AnyFunction* (*api)(std::uint32_t version);
  const char* (*version)();
};

// The table of a library; null and the reason in `tried` if there is none.
const ort::AnyFunction* open_table(const std::string& path, std::string& tried) {
  const auto refuse = [&](const std::string& reason) -> const ort::AnyFunction* {
    tried += (tried.empty() ? "" : "; ") + reason;
    return nullptr;
  };
  // Never closed: its threads and its allocators may outlive every session.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return refuse(::dlerror());
  using Base = const ApiBase*();
  auto* base = reinterpret_cast<Base*>(::dlsym(library, "OrtGetApiBase"));
  if (!base) return refuse(path + " is not ONNX Runtime: it lacks OrtGetApiBase");
  const ort::AnyFunction* table = base()->api(kApiVersion);
  if (table) return table;
  return refuse(path + " is ONNX Runtime " + base()->version() + ", which is older than version " +
                std::to_string(kApiVersion) + " of its API");
}

}  // namespace

namespace ort {

Api::Api(const AnyFunction* t)
    : error_message{t},
      create_env{t},
      disable_telemetry{t},
      create_session{t},
      run{t},
      create_session_options{t},
      set_log_severity{t},
      set_num_threads{t},
      input_count{t},
      output_count{t},
      input_type{t},
      input_name{t},
      output_name{t},
      create_tensor{t},
      tensor_data{t},
      to_tensor_info{t},
      element_type{t},
      num_dimensions{t},
      dimensions{t},
      tensor_info{t},
      create_cpu_memory_info{t},
      allocator_free{t},
      default_allocator{t},
      release_env{t},
      release_status{t},
      release_memory_info{t},
      release_session{t},
      release_value{t},
      release_type_info{t},
      release_tensor_info{t},
      release_session_options{t},
      add_initializer{t} {}

}  // namespace ort

std::shared_ptr<const OnnxRuntime> OnnxRuntime::load(const std::string& path) {
  std::vector<std::string> paths = {path};
  if (path.empty()) paths = {TRTSPEC_ONNXRUNTIME, "libonnxruntime.so.1", "libonnxruntime.so"};
  std::string tried;
  for (const std::string& candidate : paths) {
    if (candidate.empty()) continue;
    const ort::AnyFunction* table = open_table(candidate, tried);
    if (table) return std::shared_ptr<const OnnxRuntime>(new OnnxRuntime(table));
  }
  throw Error("backend 'onnx' runs on ONNX Runtime, which could not be loaded (" + tried +
              "); install it (pip install onnxruntime) and name its libonnxruntime.so with "
              "--onnxruntime");
}

OnnxRuntime::OnnxRuntime(const ort::AnyFunction* table) : api_(table) {
  check(api_.create_env(ort::kErrors, "trtspec", &env_));
  check(api_.disable_telemetry(env_));
  check(api_.create_cpu_memory_info(kDeviceAllocator, kDefaultMemory, &memory_));
}

OnnxRuntime::~OnnxRuntime() {
  if (memory_) api_.release_memory_info(memory_);
  if (env_) api_.release_env(env_);
}

void OnnxRuntime::check(ort::Status* status) const {
  if (!status) return;
  std::string message = api_.error_message(status);
  api_.release_status(status);
  std::replace(message.begin(), message.end(), '\n', ' ');
  throw Error("ONNX Runtime failed: " + message);
}

}  // namespace trtspec
