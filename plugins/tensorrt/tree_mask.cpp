#include "tree_mask.hpp"

#include <limits>

#include "../kernels.hpp"

namespace trtspec::tensorrt {

namespace {

using nvinfer1::DataType;

enum Input {
  kPadded,
  kPositions,
  kSlotMapping,
  kQueryStart,
  kContextLens,
  kIsTree,
  kTreeMask,
  kView
};

DataType mask_type(const Fields& fields) {
  const std::string& word = fields.word("mask_dtype");
  if (word == "float32") return DataType::kFLOAT;
  return word == "float16" ? DataType::kHALF : DataType::kBF16;
}

Signature signature(const Fields& fields) {
  return Signature({{"padded", {"B", "N"}, {DataType::kINT64}},
                    {"positions", {"T"}, {DataType::kINT64}},
                    {"slot_mapping", {"T"}, {DataType::kINT64}},
                    {"query_start", {"B+1"}, {DataType::kINT32}},
                    {"context_lens", {"B"}, {DataType::kINT32}},
                    {"is_tree", {"B"}, {DataType::kINT32}},
                    {"tree_mask", {"T", "W"}, {DataType::kINT64}},
                    {"view", {"L"}, {DataType::kINT64}}},
                   {{"mask", {"B", "1", "N", "L"}, {mask_type(fields)}}});
}

}  // namespace

std::vector<FieldSpec> TreeMask::field_specs() {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  return {word_field("mask_dtype", {"float32", "float16", "bfloat16"}),
          integer_field("sliding_window", 0, most)};
}

TreeMask::TreeMask(Fields fields) : Plugin(kName, fields, signature(fields)) {}

std::size_t TreeMask::workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>& in) const {
  return aligned(std::size_t(in[kIsTree].dims.d[0]));
}

cudaError_t TreeMask::launch(const Call& call) const {
  const std::int64_t requests = call.size(kContextLens, 0);
  auto* flags = static_cast<bool*>(call.workspace);
  const cudaError_t error =
      pack_flags(call.in<std::int32_t>(kIsTree), requests, flags, call.stream);
  if (error != cudaSuccess) return error;
  const DataType type = mask_type(fields());
  return cuda::tree_mask(
      cuda::TreeMaskParams{
          .out = call.out<void>(0),
          .kind = type == DataType::kFLOAT  ? cuda::MaskKind::f32
                  : type == DataType::kHALF ? cuda::MaskKind::f16
                                            : cuda::MaskKind::bf16,
          .requests = requests,
          .rows = call.size(kPositions, 0),
          .width = call.size(kPadded, 1),
          .length = call.size(kView, 0),
          .mask_words = call.size(kTreeMask, 1),
          .positions = call.in<std::int64_t>(kPositions),
          .slot_mapping = call.in<std::int64_t>(kSlotMapping),
          .query_start = call.in<std::int32_t>(kQueryStart),
          .context_lens = call.in<std::int32_t>(kContextLens),
          .is_tree = flags,
          .tree_mask = call.in<std::int64_t>(kTreeMask),
          .sliding_window = fields().integer("sliding_window"),
      },
      call.stream);
}

}  // namespace trtspec::tensorrt
