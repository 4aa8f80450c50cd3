// TensorRT::load over TensorRT's own API. The library is loaded when an engine asks for it: its
// classes are called through the tables of functions that its headers declare, so nothing of it is
// linked.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <trtspec/error.hpp>
#include <trtspec/runtime/tensorrt.hpp>
#include <utility>

#include "cuda_gpu.hpp"

namespace trtspec {

namespace {

#ifdef TRT_MAJOR_RTX
constexpr const char* kPackage = "tensorrt_rtx";
constexpr const char* kLibrary = "libtensorrt_rtx.so";
#else
constexpr const char* kPackage = "tensorrt";
constexpr const char* kLibrary = "libnvinfer.so";
#endif

// Collects errors for the exception that tells of them.
class Log final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (severity > Severity::kERROR) return;
    const std::lock_guard lock(mutex_);
    text_ += (text_.empty() ? "" : "; ") + std::string(message);
  }

  // " (TensorRT says: ...)", and forgets it.
  std::string take() {
    const std::lock_guard lock(mutex_);
    std::string text = std::exchange(text_, "");
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text.empty() ? "" : " (TensorRT says: " + text + ")";
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

// The functions that the library exports.
class Library {
 public:
  explicit Library(const std::string& path) {
    std::vector<std::string> names = {path};
    if (path.empty()) {
      const std::string versioned = std::string(kLibrary) + "." + std::to_string(NV_TENSORRT_MAJOR);
      names = {std::string(TRTSPEC_TENSORRT_ROOT) + "/lib/" + versioned, versioned, kLibrary};
    }
    std::string tried;
    for (const std::string& name : names) {
      // Never closed: its threads and allocators may outlive every engine.
      handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) {
        path_ = name;
        return;
      }
      tried += (tried.empty() ? "" : "; ") + std::string(::dlerror());
    }
    throw Error("backend 'tensorrt' runs on TensorRT, which could not be loaded (" + tried +
                "); install the TensorRT that this program was built for, and name its " +
                kLibrary + " with --tensorrt");
  }

  template <class Function>
  Function* find(const char* name) const {
    auto* function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (!function) throw Error(path_ + " is not TensorRT: it lacks " + name);
    return function;
  }

  // "11.1.0.106"
  std::string version() const {
    std::string text;
    for (const char* part : {"Major", "Minor", "Patch", "Build"}) {
      const std::string name = std::string("getInferLib") + part + "Version";
      if (!text.empty()) text += ".";
      text += std::to_string(find<std::int32_t()>(name.c_str())());
    }
    return text;
  }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

at::ScalarType dtype_of(nvinfer1::DataType type, const std::string& name) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT: return at::kFloat;
    case nvinfer1::DataType::kHALF: return at::kHalf;
    case nvinfer1::DataType::kBF16: return at::kBFloat16;
    case nvinfer1::DataType::kINT64: return at::kLong;
    case nvinfer1::DataType::kINT32: return at::kInt;
    case nvinfer1::DataType::kBOOL: return at::kBool;
    default: break;
  }
  throw Error(name + " has elements of type " + std::to_string(static_cast<int>(type)) +
              " of TensorRT's, which no engine of trtspec has");
}

// Fewer than no dimensions is how TensorRT says that it does not know a tensor.
std::vector<std::int64_t> sizes_of(const nvinfer1::Dims& dims, const std::string& name) {
  if (dims.nbDims < 0) throw Error(name + " is not known to TensorRT");
  return {dims.d, dims.d + dims.nbDims};
}

class Context final : public TensorRTContext {
 public:
  Context(std::unique_ptr<nvinfer1::IExecutionContext> context, std::shared_ptr<CudaGpu> gpu,
          std::shared_ptr<Log> log, std::string path)
      : context_(std::move(context)),
        gpu_(std::move(gpu)),
        log_(std::move(log)),
        path_(std::move(path)) {}

  void set_input_sizes(const std::string& name, std::span<const std::int64_t> sizes) override {
    nvinfer1::Dims dims{};
    require(sizes.size() <= nvinfer1::Dims::MAX_DIMS, name + " has too many dimensions");
    dims.nbDims = static_cast<std::int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), dims.d);
    require(context_->setInputShape(name.c_str(), dims), name + " cannot be of this size");
  }

  std::vector<std::int64_t> output_sizes(const std::string& name) const override {
    const std::vector<std::int64_t> sizes =
        sizes_of(context_->getTensorShape(name.c_str()), path_ + ": " + name);
    const bool known = std::all_of(sizes.begin(), sizes.end(), [](auto size) { return size >= 0; });
    require(known, "the size of " + name + " is not known");
    return sizes;
  }

  void set_address(const std::string& name, void* data) override {
    require(context_->setTensorAddress(name.c_str(), data), name + " cannot lie there");
  }

  void enqueue() override { require(context_->enqueueV3(gpu_->stream()), "a call failed"); }

 private:
  void require(bool done, const std::string& what) const {
    if (!done) throw Error(path_ + ": " + what + log_->take());
  }

  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  std::shared_ptr<CudaGpu> gpu_;
  std::shared_ptr<Log> log_;
  std::string path_;
};

class Engine final : public TensorRTEngine {
 public:
  Engine(std::unique_ptr<nvinfer1::ICudaEngine> engine, std::shared_ptr<CudaGpu> gpu,
         std::shared_ptr<Log> log, const std::string& path)
      : engine_(std::move(engine)), gpu_(std::move(gpu)), log_(std::move(log)), path_(path) {
    for (std::int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      const char* name = engine_->getIOTensorName(i);
      tensors_.push_back(
          {.name = name,
           .dtype = dtype_of(engine_->getTensorDataType(name), path + ": " + name),
           .is_input = engine_->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT});
    }
  }

  const std::vector<EngineTensor>& tensors() const override { return tensors_; }
  std::int64_t num_profiles() const override { return engine_->getNbOptimizationProfiles(); }

  SizeLimits limits(const std::string& input, std::int64_t profile) const override {
    const auto sizes = [&](nvinfer1::OptProfileSelector which) {
      return sizes_of(engine_->getProfileShape(input.c_str(), std::int32_t(profile), which),
                      path_ + ": " + input);
    };
    return {sizes(nvinfer1::OptProfileSelector::kMIN), sizes(nvinfer1::OptProfileSelector::kMAX)};
  }

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(std::max<std::int64_t>(engine_->getDeviceMemorySizeV2(), 0));
  }

  std::unique_ptr<TensorRTContext> new_context(std::int64_t profile,
                                               const GpuMemory& scratch) override {
    using nvinfer1::ExecutionContextAllocationStrategy;
    std::unique_ptr<nvinfer1::IExecutionContext> context(
        engine_->createExecutionContext(ExecutionContextAllocationStrategy::kUSER_MANAGED));
    if (!context) {
      throw Error("TensorRT makes no execution context of " + path_ + log_->take() +
                  "; free memory of the GPU, or rebuild the engine with trtspec-build");
    }
    context->setDeviceMemoryV2(scratch.data(), static_cast<std::int64_t>(scratch.size()));
    if (!context->setOptimizationProfileAsync(std::int32_t(profile), gpu_->stream())) {
      throw Error(path_ + ": profile " + std::to_string(profile) + " cannot be used" +
                  log_->take());
    }
    // Those that TensorRT makes wait for the default stream, and it for them.
    const std::int32_t count = std::max(engine_->getNbAuxStreams(), 0);
    context->setAuxStreams(gpu_->auxiliary_streams(static_cast<std::size_t>(count)).data(), count);
    gpu_->synchronize();
    return std::make_unique<Context>(std::move(context), gpu_, log_, path_);
  }

 private:
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::shared_ptr<CudaGpu> gpu_;
  std::shared_ptr<Log> log_;
  std::string path_;
  std::vector<EngineTensor> tensors_;
};

class LoadedTensorRT final : public TensorRT {
 public:
  explicit LoadedTensorRT(const Library& library)
      : version_(std::string(kPackage) + " " + library.version()), log_(std::make_shared<Log>()) {
    using Create = void*(void* logger, std::int32_t version);
    Create* create = library.find<Create>("createInferRuntime_INTERNAL");
    cuda_ = std::make_shared<CudaGpu>();
    gpu_ = cuda_;
    runtime_.reset(
        static_cast<nvinfer1::IRuntime*>(create(log_.get(), std::int32_t{NV_TENSORRT_VERSION})));
    if (!runtime_) {
      throw Error(version_ + " cannot be used by this program, which was built for " + kPackage +
                  " " + std::to_string(NV_TENSORRT_MAJOR) + "." +
                  std::to_string(NV_TENSORRT_MINOR) + "." + std::to_string(NV_TENSORRT_PATCH) +
                  log_->take() + "; name a library of that version with --tensorrt");
    }
  }

  std::string version() const override { return version_; }
  const std::shared_ptr<Gpu>& gpu() const override { return gpu_; }

  std::unique_ptr<TensorRTEngine> deserialize(std::span<const char> plan,
                                              const std::string& path) override {
    std::unique_ptr<nvinfer1::ICudaEngine> engine(
        runtime_->deserializeCudaEngine(plan.data(), plan.size()));
    if (!engine) throw Error(version_ + " does not take " + path + log_->take());
    return std::make_unique<Engine>(std::move(engine), cuda_, log_, path);
  }

 private:
  std::string version_;
  std::shared_ptr<Log> log_;  // outlives the runtime
  std::shared_ptr<CudaGpu> cuda_;
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
};

}  // namespace

std::shared_ptr<TensorRT> TensorRT::load(const std::string& path) {
  return std::make_shared<LoadedTensorRT>(Library(path));
}

}  // namespace trtspec
