// KeyedSample: the token that each row emits.
#pragma once
#include "plugin.hpp"

namespace trtspec::tensorrt {

// The contract of trtspec::sample (trtspec/ops/sampling.py).
// Inputs: logits [R, V] float32; temperature float32, top_k int32, top_p float32, min_p float32,
// seed, sample_index, output_index int64, each [R].
// Output: ids [R] int64; -1 for a row without a token. No fields.
class KeyedSample final : public Plugin {
 public:
  static constexpr const char* kName = "KeyedSample";
  static std::vector<FieldSpec> field_specs() { return {}; }

  explicit KeyedSample(Fields fields);

 private:
  std::unique_ptr<Plugin> copy() const override { return std::make_unique<KeyedSample>(*this); }
  cudaError_t launch(const Call& call) const override;
  std::size_t workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>& in) const override;
};

}  // namespace trtspec::tensorrt
