// What the plugins share: everything that follows from their fields and their signature. A plugin
// adds its launch.
#pragma once
#include <NvInferRuntime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fields.hpp"
#include "logging.hpp"
#include "signature.hpp"

namespace trtspec::tensorrt {

inline constexpr const char* kNamespace = "trtspec";
inline constexpr const char* kVersion = "1";

// Pieces of one workspace start at multiples of this, and so does the workspace itself.
inline constexpr std::size_t kWorkspaceAlignment = 256;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuildV2,
               public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(const char* name, Fields fields, Signature signature);

  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  const char* getPluginName() const noexcept override { return name_; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

  std::int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs,
                               std::int32_t num_inputs,
                               const nvinfer1::DynamicPluginTensorDesc* outputs,
                               std::int32_t num_outputs) noexcept override;
  std::int32_t getOutputDataTypes(nvinfer1::DataType* output_types, std::int32_t num_outputs,
                                  const nvinfer1::DataType* input_types,
                                  std::int32_t num_inputs) const noexcept override;
  std::int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, std::int32_t num_inputs,
                               const nvinfer1::DimsExprs* shape_inputs,
                               std::int32_t num_shape_inputs, nvinfer1::DimsExprs* outputs,
                               std::int32_t num_outputs,
                               nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(std::int32_t pos, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 std::int32_t num_inputs,
                                 std::int32_t num_outputs) noexcept override;
  std::int32_t getNbOutputs() const noexcept override { return signature_.num_outputs(); }
  std::size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* inputs,
                               std::int32_t num_inputs,
                               const nvinfer1::DynamicPluginTensorDesc* outputs,
                               std::int32_t num_outputs) const noexcept override;
  const char* getTimingCacheID() noexcept override { return text_.c_str(); }
  const char* getMetadataString() noexcept override { return text_.c_str(); }

  std::int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, std::int32_t num_inputs,
                             const nvinfer1::PluginTensorDesc* outputs,
                             std::int32_t num_outputs) noexcept override;
  std::int32_t enqueue(const nvinfer1::PluginTensorDesc* input_descs,
                       const nvinfer1::PluginTensorDesc* output_descs, const void* const* inputs,
                       void* const* outputs, void* workspace,
                       cudaStream_t stream) noexcept override;
  // Nothing of a context is used: a plugin holds sizes and no memory.
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override {
    return clone();
  }
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 protected:
  // One call of the plugin; shapes fit the signature.
  struct Call {
    const nvinfer1::PluginTensorDesc* descs;  // of the inputs
    const void* const* inputs;
    void* const* outputs;
    void* workspace;
    cudaStream_t stream;

    std::int64_t size(std::int32_t input, std::int32_t dim) const {
      return descs[input].dims.d[dim];
    }
    template <class T>
    const T* in(std::int32_t input) const {
      return static_cast<const T*>(inputs[input]);
    }
    template <class T>
    T* out(std::int32_t output) const {
      return static_cast<T*>(outputs[output]);
    }
  };

  Plugin(const Plugin&) = default;

  virtual std::unique_ptr<Plugin> copy() const = 0;
  // std::runtime_error for what is wrong with a call.
  virtual cudaError_t launch(const Call& call) const = 0;
  // Bytes that suffice for inputs of these sizes or smaller.
  virtual std::size_t workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>&) const {
    return 0;
  }

  const Fields& fields() const { return fields_; }

 private:
  // The result of `action`, or `failed` with the exception's text in the log.
  template <class Action, class Result>
  Result guarded(Action action, Result failed) const noexcept;

  const char* name_;
  Fields fields_;
  Signature signature_;
  std::string text_;
  std::vector<nvinfer1::PluginField> serialized_;
  nvinfer1::PluginFieldCollection collection_;
};

// is_tree comes as int32, 0 or 1, since tensors of plugins cannot be bool. Packs its `count`
// flags to the bytes that the kernels read; `flags` has room for as many.
cudaError_t pack_flags(const std::int32_t* values, std::int64_t count, bool* flags,
                       cudaStream_t stream);

// Creates plugins of class P, which has kName, field_specs() and a constructor from Fields.
template <class P>
class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  Creator() : specs_(P::field_specs()), announced_(announced(specs_)) {
    collection_ = {std::int32_t(announced_.size()), announced_.data()};
  }

  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* given,
                                    nvinfer1::TensorRTPhase) noexcept override {
    try {
      const nvinfer1::PluginFieldCollection none{};
      return std::make_unique<P>(Fields(specs_, given != nullptr ? *given : none)).release();
    } catch (const std::exception& error) {
      log_error(std::string(P::kName) + " " + (name != nullptr ? name : "") + ": " + error.what());
      return nullptr;
    }
  }
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return P::kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  std::vector<FieldSpec> specs_;
  std::vector<nvinfer1::PluginField> announced_;
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace trtspec::tensorrt
