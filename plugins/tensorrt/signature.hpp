// What tensors a plugin takes and gives. Formats, types and shapes follow from it.
#pragma once
#include <NvInferRuntime.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trtspec::tensorrt {

// A dimension is a number ("1"), a size that is the same wherever its name stands ("T"), or one
// more than such a size ("B+1").
struct TensorSpec {
  const char* name;
  std::vector<std::string> dims;
  std::vector<nvinfer1::DataType> types;  // those allowed
  std::int32_t same_as = -1;              // an earlier tensor whose type this one has
};

class Signature {
 public:
  // Tensors are numbered inputs first, as TensorRT does. `sizes` are known beforehand; the
  // others of the outputs are sizes of inputs.
  Signature(std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs,
            std::map<std::string, std::int64_t> sizes = {});

  std::int32_t num_inputs() const { return std::int32_t(inputs_.size()); }
  std::int32_t num_outputs() const { return std::int32_t(outputs_.size()); }

  // Whether tensor `pos` has a row-major layout and a type that fits those before it.
  bool accepts(std::int32_t pos, const nvinfer1::DynamicPluginTensorDesc* tensors) const;

  nvinfer1::DataType output_type(std::int32_t output, const nvinfer1::DataType* input_types) const;

  void output_shapes(const nvinfer1::DimsExprs* inputs, nvinfer1::DimsExprs* outputs,
                     nvinfer1::IExprBuilder& builder) const;

  // std::invalid_argument if there are more or fewer inputs, or if their shapes contradict the
  // signature, naming tensor and dimension; -1 stands for a dimension not known yet.
  void check(const std::vector<nvinfer1::Dims>& inputs) const;

 private:
  const TensorSpec& tensor(std::int32_t pos) const;

  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
  std::map<std::string, std::int64_t> sizes_;
};

}  // namespace trtspec::tensorrt
