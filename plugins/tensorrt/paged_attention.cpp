#include "paged_attention.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "../kernels.hpp"

namespace trtspec::tensorrt {

namespace {

using nvinfer1::DataType;
using nvinfer1::PluginTensorDesc;

enum Input {
  kQ,
  kK,
  kV,
  kKCache,
  kVCache,
  kPositions,
  kSlotMapping,
  kBlockTables,
  kQueryStart,
  kContextLens,
  kIsTree,
  kTreeMask
};
enum Output { kOut, kKCacheOut, kVCacheOut };

constexpr std::int32_t kMaxHeadDim = 256;

Signature signature(const Fields& fields) {
  const std::vector<std::string> cache = {"blocks", "block_size", "num_kv_heads", "head_dim"};
  return Signature(
      {{"q", {"T", "num_heads", "head_dim"}, {DataType::kFLOAT, DataType::kHALF, DataType::kBF16}},
       {"k", {"T", "num_kv_heads", "head_dim"}, {}, kQ},
       {"v", {"T", "num_kv_heads", "head_dim"}, {}, kQ},
       {"k_cache", cache, {}, kQ},
       {"v_cache", cache, {}, kQ},
       {"positions", {"T"}, {DataType::kINT64}},
       {"slot_mapping", {"T"}, {DataType::kINT64}},
       {"block_tables", {"B", "M"}, {DataType::kINT32}},
       {"query_start", {"B+1"}, {DataType::kINT32}},
       {"context_lens", {"B"}, {DataType::kINT32}},
       {"is_tree", {"B"}, {DataType::kINT32}},
       {"tree_mask", {"T", "W"}, {DataType::kINT64}}},
      {{"out", {"T", "num_heads", "head_dim"}, {}, kQ},
       {"k_cache", cache, {}, kQ},
       {"v_cache", cache, {}, kQ}},
      {{"num_heads", fields.integer("num_heads")},
       {"num_kv_heads", fields.integer("num_kv_heads")},
       {"head_dim", fields.integer("head_dim")}});
}

// The sizes of a call; pointers are left null.
AttentionParams sizes(const PluginTensorDesc* in, const Fields& fields) {
  const std::int64_t heads = fields.integer("num_heads");
  const std::int64_t kv_heads = fields.integer("num_kv_heads");
  const std::int64_t head_dim = fields.integer("head_dim");
  AttentionParams params{};
  params.q_stride = heads * head_dim;
  params.k_stride = params.v_stride = kv_heads * head_dim;
  params.dtype = in[kQ].type == DataType::kFLOAT  ? DType::f32
                 : in[kQ].type == DataType::kHALF ? DType::f16
                                                  : DType::bf16;
  params.rows = in[kQ].dims.d[0];
  params.requests = in[kContextLens].dims.d[0];
  params.heads = heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  params.num_blocks = in[kKCache].dims.d[0];
  params.block_size = in[kKCache].dims.d[1];
  params.table_width = in[kBlockTables].dims.d[1];
  params.mask_words = in[kTreeMask].dims.d[1];
  params.scale = fields.number("scale");
  params.sliding_window = fields.integer("sliding_window");
  params.soft_cap = fields.number("soft_cap");
  return params;
}

}  // namespace

std::vector<FieldSpec> PagedTreeAttention::field_specs() {
  return {integer_field("num_heads", 1, 1 << 16),
          integer_field("num_kv_heads", 1, 1 << 16),
          integer_field("head_dim", 1, kMaxHeadDim),
          number_field("scale", 0),
          integer_field("sliding_window", 0, std::numeric_limits<std::int32_t>::max()),
          number_from_field("soft_cap", 0)};
}

PagedTreeAttention::PagedTreeAttention(Fields fields) : Plugin(kName, fields, signature(fields)) {
  if (fields.integer("num_heads") % fields.integer("num_kv_heads") != 0) {
    throw std::invalid_argument("field num_heads must be a multiple of num_kv_heads, got " +
                                std::to_string(fields.integer("num_heads")) + " and " +
                                std::to_string(fields.integer("num_kv_heads")));
  }
}

std::int32_t PagedTreeAttention::getAliasedInput(std::int32_t output) noexcept {
  return output == kKCacheOut ? kKCache : output == kVCacheOut ? kVCache : -1;
}

cudaError_t PagedTreeAttention::launch(const Call& call) const {
  if (call.outputs[kKCacheOut] != call.inputs[kKCache] ||
      call.outputs[kVCacheOut] != call.inputs[kVCache]) {
    throw std::runtime_error(
        "the caches were copied instead of being written in place; build the engine with "
        "PreviewFeature::kALIASED_PLUGIN_IO_10_03");
  }
  AttentionParams params = sizes(call.descs, fields());
  auto* flags = static_cast<bool*>(call.workspace);
  const cudaError_t error =
      pack_flags(call.in<std::int32_t>(kIsTree), params.requests, flags, call.stream);
  if (error != cudaSuccess) return error;
  params.q = call.inputs[kQ];
  params.k = call.inputs[kK];
  params.v = call.inputs[kV];
  params.k_cache = call.outputs[kKCacheOut];
  params.v_cache = call.outputs[kVCacheOut];
  params.out = call.outputs[kOut];
  params.positions = call.in<std::int64_t>(kPositions);
  params.slot_mapping = call.in<std::int64_t>(kSlotMapping);
  params.block_tables = call.in<std::int32_t>(kBlockTables);
  params.query_start = call.in<std::int32_t>(kQueryStart);
  params.context_lens = call.in<std::int32_t>(kContextLens);
  params.is_tree = flags;
  params.tree_mask = call.in<std::int64_t>(kTreeMask);
  auto* scratch = static_cast<char*>(call.workspace) + aligned(std::size_t(params.requests));
  return cuda::paged_tree_attention(params, scratch, call.stream);
}

std::size_t PagedTreeAttention::workspace_bytes(const std::vector<PluginTensorDesc>& in) const {
  AttentionParams params = sizes(in.data(), fields());
  const std::int64_t most_rows = params.rows;
  const std::int64_t most_requests = params.requests;
  // Smaller calls may need more: with fewer tiles, keys are divided among more blocks.
  std::size_t scratch = 0;
  for (params.rows = 1; params.rows <= most_rows; ++params.rows) {
    for (params.requests = 1; params.requests <= most_requests; ++params.requests) {
      scratch = std::max(scratch, cuda::paged_tree_attention_workspace(params));
    }
  }
  return aligned(std::size_t(most_requests)) + scratch;
}

}  // namespace trtspec::tensorrt
