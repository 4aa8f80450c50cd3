#include "plugin.hpp"

#include <exception>
#include <stdexcept>

namespace trtspec::tensorrt {

using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

Plugin::Plugin(const char* name, Fields fields, Signature signature)
    : name_(name),
      fields_(std::move(fields)),
      signature_(std::move(signature)),
      text_(fields_.text()),
      collection_{} {}

template <class Action, class Result>
Result Plugin::guarded(Action action, Result failed) const noexcept {
  try {
    return action();
  } catch (const std::exception& error) {
    log_error(std::string(name_) + ": " + error.what());
    return failed;
  }
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  return guarded([&]() -> nvinfer1::IPluginV3* { return copy().release(); },
                 static_cast<nvinfer1::IPluginV3*>(nullptr));
}

std::int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* inputs, std::int32_t num_inputs,
                                     const DynamicPluginTensorDesc*, std::int32_t) noexcept {
  return guarded(
      [&] {
        std::vector<nvinfer1::Dims> dims;
        for (std::int32_t i = 0; i < num_inputs; ++i) dims.push_back(inputs[i].desc.dims);
        signature_.check(dims);
        return 0;
      },
      -1);
}

std::int32_t Plugin::getOutputDataTypes(nvinfer1::DataType* output_types, std::int32_t num_outputs,
                                        const nvinfer1::DataType* input_types,
                                        std::int32_t num_inputs) const noexcept {
  if (num_inputs != signature_.num_inputs() || num_outputs != signature_.num_outputs()) return -1;
  for (std::int32_t i = 0; i < num_outputs; ++i) {
    output_types[i] = signature_.output_type(i, input_types);
  }
  return 0;
}

std::int32_t Plugin::getOutputShapes(const nvinfer1::DimsExprs* inputs, std::int32_t num_inputs,
                                     const nvinfer1::DimsExprs*, std::int32_t,
                                     nvinfer1::DimsExprs* outputs, std::int32_t num_outputs,
                                     nvinfer1::IExprBuilder& builder) noexcept {
  return guarded(
      [&] {
        if (num_inputs != signature_.num_inputs() || num_outputs != signature_.num_outputs()) {
          throw std::invalid_argument("needs " + std::to_string(signature_.num_inputs()) +
                                      " inputs, got " + std::to_string(num_inputs));
        }
        std::vector<nvinfer1::Dims> dims(std::size_t(num_inputs), nvinfer1::Dims{});
        for (std::int32_t i = 0; i < num_inputs; ++i) {
          dims[std::size_t(i)].nbDims = inputs[i].nbDims;
          for (std::int32_t d = 0; d < inputs[i].nbDims; ++d) {
            const nvinfer1::IDimensionExpr& size = *inputs[i].d[d];
            dims[std::size_t(i)].d[d] = size.isConstant() ? size.getConstantValue() : -1;
          }
        }
        signature_.check(dims);
        signature_.output_shapes(inputs, outputs, builder);
        return 0;
      },
      -1);
}

bool Plugin::supportsFormatCombination(std::int32_t pos, const DynamicPluginTensorDesc* tensors,
                                       std::int32_t num_inputs, std::int32_t num_outputs) noexcept {
  return num_inputs == signature_.num_inputs() && num_outputs == signature_.num_outputs() &&
         signature_.accepts(pos, tensors);
}

std::size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* inputs, std::int32_t num_inputs,
                                     const DynamicPluginTensorDesc*, std::int32_t) const noexcept {
  return guarded(
      [&] {
        std::vector<PluginTensorDesc> largest;
        for (std::int32_t i = 0; i < num_inputs; ++i) {
          largest.push_back(inputs[i].desc);
          largest.back().dims = inputs[i].max;
        }
        return workspace_bytes(largest);
      },
      std::size_t(0));
}

std::int32_t Plugin::onShapeChange(const PluginTensorDesc* inputs, std::int32_t num_inputs,
                                   const PluginTensorDesc*, std::int32_t) noexcept {
  return guarded(
      [&] {
        std::vector<nvinfer1::Dims> dims;
        for (std::int32_t i = 0; i < num_inputs; ++i) dims.push_back(inputs[i].dims);
        signature_.check(dims);
        return 0;
      },
      -1);
}

std::int32_t Plugin::enqueue(const PluginTensorDesc* input_descs, const PluginTensorDesc*,
                             const void* const* inputs, void* const* outputs, void* workspace,
                             cudaStream_t stream) noexcept {
  return guarded(
      [&] {
        const cudaError_t error = launch({input_descs, inputs, outputs, workspace, stream});
        if (error != cudaSuccess) {
          throw std::runtime_error(std::string("the launch failed: ") + cudaGetErrorString(error));
        }
        return 0;
      },
      -1);
}

const nvinfer1::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  return guarded(
      [&]() -> const nvinfer1::PluginFieldCollection* {
        serialized_ = fields_.serialized();
        collection_ = {std::int32_t(serialized_.size()), serialized_.data()};
        return &collection_;
      },
      static_cast<const nvinfer1::PluginFieldCollection*>(nullptr));
}

cudaError_t pack_flags(const std::int32_t* values, std::int64_t count, bool* flags,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  // The lowest byte of each value: rows of one byte, four apart.
  return cudaMemcpy2DAsync(flags, 1, values, sizeof(std::int32_t), 1, std::size_t(count),
                           cudaMemcpyDeviceToDevice, stream);
}

}  // namespace trtspec::tensorrt
