// Plugins as an application makes them: from fields, by the creators of the library.
#pragma once
#include <NvInferRuntime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../plugins.hpp"

namespace given {

using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::IPluginCreatorV3One;
using nvinfer1::PluginCapabilityType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using PluginPtr = std::unique_ptr<nvinfer1::IPluginV3>;

inline IPluginCreatorV3One* creator_of(const std::string& name) {
  std::int32_t count = 0;
  nvinfer1::IPluginCreatorInterface* const* all = getCreators(count);
  for (std::int32_t i = 0; i < count; ++i) {
    auto* creator = static_cast<IPluginCreatorV3One*>(all[i]);
    if (name == creator->getPluginName()) return creator;
  }
  return nullptr;
}

// Fields that own what they point to.
class Given {
 public:
  Given& integer(const char* name, std::int32_t value) {
    return add(name, PluginFieldType::kINT32, &value, sizeof value, 1);
  }
  Given& long_integer(const char* name, std::int64_t value) {
    return add(name, PluginFieldType::kINT64, &value, sizeof value, 1);
  }
  Given& number(const char* name, float value) {
    return add(name, PluginFieldType::kFLOAT32, &value, sizeof value, 1);
  }
  Given& word(const char* name, const std::string& value) {
    return add(name, PluginFieldType::kCHAR, value.data(), value.size(), value.size());
  }
  Given without(const std::string& name) const {
    Given rest;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (name != fields_[i].name) {
        rest.add(fields_[i].name, fields_[i].type, data_[i].data(), data_[i].size(),
                 std::size_t(fields_[i].length));
      }
    }
    return rest;
  }

  PluginPtr create(const std::string& plugin) const {
    std::vector<PluginField> fields = fields_;
    for (std::size_t i = 0; i < fields.size(); ++i) fields[i].data = data_[i].data();
    const nvinfer1::PluginFieldCollection collection{std::int32_t(fields.size()), fields.data()};
    return PluginPtr(
        creator_of(plugin)->createPlugin("layer", &collection, nvinfer1::TensorRTPhase::kBUILD));
  }

 private:
  Given& add(const char* name, PluginFieldType type, const void* data, std::size_t bytes,
             std::size_t length) {
    fields_.emplace_back(name, nullptr, type, std::int32_t(length));
    const auto* from = static_cast<const char*>(data);
    data_.emplace_back(from, from + bytes);
    return *this;
  }

  std::vector<PluginField> fields_;
  std::vector<std::vector<char>> data_;
};

inline nvinfer1::IPluginV3OneBuildV2* build_of(nvinfer1::IPluginV3& plugin) {
  return static_cast<nvinfer1::IPluginV3OneBuildV2*>(
      plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
}

inline nvinfer1::IPluginV3OneRuntime* runtime_of(nvinfer1::IPluginV3& plugin) {
  return static_cast<nvinfer1::IPluginV3OneRuntime*>(
      plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

struct Tensor {
  nvinfer1::DataType type;
  std::vector<std::int64_t> dims;
};

// Row-major tensors of these types and shapes.
inline std::vector<DynamicPluginTensorDesc> descs_of(const std::vector<Tensor>& tensors) {
  std::vector<DynamicPluginTensorDesc> descs(tensors.size(), DynamicPluginTensorDesc{});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    nvinfer1::PluginTensorDesc& desc = descs[i].desc;
    desc.type = tensors[i].type;
    desc.format = nvinfer1::TensorFormat::kLINEAR;
    desc.dims.nbDims = std::int32_t(tensors[i].dims.size());
    for (std::size_t d = 0; d < tensors[i].dims.size(); ++d) desc.dims.d[d] = tensors[i].dims[d];
    descs[i].min = descs[i].opt = descs[i].max = desc.dims;
  }
  return descs;
}

}  // namespace given
