// Libraries: what runs the engines of a backend, loaded when a folder asks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <trtspec/runtime/device.hpp>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/onnx_runtime.hpp>
#include <trtspec/runtime/tensorrt.hpp>

namespace trtspec {

struct Libraries {
  // Where the shared libraries are; "": where OnnxRuntime::load and TensorRT::load look.
  struct Paths {
    std::string onnxruntime;
    std::string tensorrt;
  };

  std::shared_ptr<const OnnxRuntime> onnxruntime;  // for backend onnx, else null
  std::shared_ptr<TensorRT> tensorrt;              // for backend tensorrt, else null

  // What the folder's backend runs on. Throws Error if that is not to be had, or if the folder's
  // engines are for another GPU, or of another TensorRT.
  static Libraries load(const EngineFolder& folder, const Paths& paths);

  // Where its K/V caches and logits lie, and how many bytes can be had there.
  std::shared_ptr<Device> make_device() const;
  std::int64_t free_memory() const;
};

}  // namespace trtspec
