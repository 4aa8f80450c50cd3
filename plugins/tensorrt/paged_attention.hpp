// PagedTreeAttention: attention over paged caches that it writes, for engines built with
// --kv_cache_type paged.
#pragma once
#include "plugin.hpp"

namespace trtspec::tensorrt {

// The contract of trtspec::paged_tree_attention (trtspec/ops/attention.py).
// Inputs: q [T, num_heads, head_dim]; k, v [T, num_kv_heads, head_dim]; k_cache, v_cache [blocks,
// block_size, num_kv_heads, head_dim]: all of one type, float32, float16 or bfloat16; positions,
// slot_mapping [T] int64; block_tables [B, M] int32; query_start [B + 1], context_lens, is_tree
// [B] int32 (is_tree: 0 or 1); tree_mask [T, W] int64.
// Outputs: out [T, num_heads, head_dim]; k_cache and v_cache, the same memory as the inputs (the
// network needs PreviewFeature::kALIASED_PLUGIN_IO_10_03; a call with a copy is an error).
// Fields: num_heads, num_kv_heads, head_dim; scale; sliding_window in tokens, 0 for none; soft_cap of
// the scores, 0 for none.
class PagedTreeAttention final : public Plugin {
 public:
  static constexpr const char* kName = "PagedTreeAttention";
  static std::vector<FieldSpec> field_specs();

  // std::invalid_argument if num_heads is not a multiple of num_kv_heads.
  explicit PagedTreeAttention(Fields fields);

  std::int32_t getAliasedInput(std::int32_t output) noexcept override;

 private:
  std::unique_ptr<Plugin> copy() const override {
    return std::make_unique<PagedTreeAttention>(*this);
  }
  cudaError_t launch(const Call& call) const override;
  std::size_t workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>& in) const override;
};

}  // namespace trtspec::tensorrt
