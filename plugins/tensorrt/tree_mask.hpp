// TreeMask: packed ancestors and lengths to the attention mask of a slot cache.
#pragma once
#include "plugin.hpp"

namespace trtspec::tensorrt {

// Inputs: padded [B, N], int64: only its shape is used, N being the rows of a request in the mask;
// positions, slot_mapping [T], int64; query_start [B + 1], context_lens, is_tree [B], int32;
// tree_mask [T, W], int64: as paged_tree_attention has them (is_tree: 0 or 1); view [L], int64:
// only its shape is used, L being the positions of the cache that the mask has, from 0 on.
// Output: mask [B, 1, N, L] of mask_dtype: 0 where a row sees a position, -inf elsewhere. A row
// that sees nothing sees position 0.
// Fields: mask_dtype (float32, float16, bfloat16); sliding_window in tokens, 0 for none.
class TreeMask final : public Plugin {
 public:
  static constexpr const char* kName = "TreeMask";
  static std::vector<FieldSpec> field_specs();

  explicit TreeMask(Fields fields);

 private:
  std::unique_ptr<Plugin> copy() const override { return std::make_unique<TreeMask>(*this); }
  cudaError_t launch(const Call& call) const override;
  std::size_t workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>& in) const override;
};

}  // namespace trtspec::tensorrt
