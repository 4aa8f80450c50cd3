// For programs that are built without TensorRT.
#include <trtspec/error.hpp>
#include <trtspec/runtime/tensorrt.hpp>

namespace trtspec {

std::shared_ptr<TensorRT> TensorRT::load(const std::string&) {
  throw Error(
      "backend 'tensorrt' needs TensorRT, which this program was built without; build it "
      "with cmake -DTENSORRT_ROOT=<folder of TensorRT or TensorRT-RTX>, run the engine "
      "with trtspec.LLM, or rebuild it with --backend onnx");
}

}  // namespace trtspec
