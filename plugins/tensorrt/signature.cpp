#include "signature.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace trtspec::tensorrt {

namespace {

using nvinfer1::DataType;

// A dimension is base + offset: the base a name, or empty for a plain number.
struct Dim {
  std::string base;
  std::int64_t offset;
};

Dim parsed(const std::string& dim) {
  if (dim.find_first_not_of("0123456789") == std::string::npos) return {"", std::stoll(dim)};
  const auto plus = dim.find('+');
  if (plus == std::string::npos) return {dim, 0};
  return {dim.substr(0, plus), std::stoll(dim.substr(plus + 1))};
}

std::string text_of(const std::vector<std::string>& dims) {
  std::string text;
  for (const std::string& dim : dims) text += (text.empty() ? "" : ", ") + dim;
  return "[" + text + "]";
}

}  // namespace

Signature::Signature(std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs,
                     std::map<std::string, std::int64_t> sizes)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), sizes_(std::move(sizes)) {}

const TensorSpec& Signature::tensor(std::int32_t pos) const {
  return pos < num_inputs() ? inputs_[std::size_t(pos)] : outputs_[std::size_t(pos - num_inputs())];
}

bool Signature::accepts(std::int32_t pos, const nvinfer1::DynamicPluginTensorDesc* tensors) const {
  const TensorSpec& spec = tensor(pos);
  const nvinfer1::PluginTensorDesc& desc = tensors[pos].desc;
  if (desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
  if (spec.same_as >= 0) return desc.type == tensors[spec.same_as].desc.type;
  return std::find(spec.types.begin(), spec.types.end(), desc.type) != spec.types.end();
}

DataType Signature::output_type(std::int32_t output, const DataType* input_types) const {
  const TensorSpec& spec = outputs_[std::size_t(output)];
  return spec.same_as >= 0 ? input_types[spec.same_as] : spec.types.front();
}

void Signature::output_shapes(const nvinfer1::DimsExprs* inputs, nvinfer1::DimsExprs* outputs,
                              nvinfer1::IExprBuilder& builder) const {
  const auto size = [&](const std::string& dim) -> const nvinfer1::IDimensionExpr* {
    const Dim wanted = parsed(dim);
    if (wanted.base.empty()) return builder.constant(wanted.offset);
    if (const auto known = sizes_.find(dim); known != sizes_.end()) {
      return builder.constant(known->second);
    }
    for (const std::int64_t offset : {0, 1}) {
      const std::string held = offset == 0 ? dim : dim + "+" + std::to_string(offset);
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const auto& dims = inputs_[i].dims;
        const auto at = std::find(dims.begin(), dims.end(), held);
        if (at == dims.end()) continue;
        const nvinfer1::IDimensionExpr* extent = inputs[i].d[at - dims.begin()];
        if (offset == 0) return extent;
        return builder.operation(nvinfer1::DimensionOperation::kSUB, *extent,
                                 *builder.constant(offset));
      }
    }
    throw std::logic_error("no input has the size " + dim);
  };
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    outputs[i].nbDims = std::int32_t(outputs_[i].dims.size());
    for (std::size_t d = 0; d < outputs_[i].dims.size(); ++d) {
      outputs[i].d[d] = size(outputs_[i].dims[d]);
    }
  }
}

void Signature::check(const std::vector<nvinfer1::Dims>& inputs) const {
  if (inputs.size() != inputs_.size()) {
    throw std::invalid_argument("needs " + std::to_string(inputs_.size()) + " inputs, got " +
                                std::to_string(inputs.size()));
  }
  std::map<std::string, std::int64_t> sizes = sizes_;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const TensorSpec& spec = inputs_[i];
    const nvinfer1::Dims& given = inputs[i];
    if (given.nbDims != std::int32_t(spec.dims.size())) {
      throw std::invalid_argument(std::string("input ") + spec.name + " must be " +
                                  text_of(spec.dims) + ", got " + std::to_string(given.nbDims) +
                                  " dimensions");
    }
    for (std::size_t d = 0; d < spec.dims.size(); ++d) {
      if (given.d[d] < 0) continue;
      const Dim dim = parsed(spec.dims[d]);
      std::int64_t wanted = dim.offset;
      if (!dim.base.empty()) {
        wanted += sizes.try_emplace(dim.base, given.d[d] - dim.offset).first->second;
      }
      if (given.d[d] != wanted) {
        throw std::invalid_argument(std::string("input ") + spec.name + " must be " +
                                    text_of(spec.dims) + " with " + spec.dims[d] + " = " +
                                    std::to_string(wanted) + ", got " + std::to_string(given.d[d]));
      }
    }
  }
}

}  // namespace trtspec::tensorrt
