#include "tree_accept.hpp"

#include "../kernels.hpp"

namespace trtspec::tensorrt {

namespace {

using nvinfer1::DataType;

enum Input { kSampled, kTokens, kParents, kRowStart };

Signature signature(const Fields& fields) {
  return Signature({{"sampled", {"R"}, {DataType::kINT64}},
                    {"tokens", {"R"}, {DataType::kINT64}},
                    {"parents", {"R"}, {DataType::kINT32}},
                    {"row_start", {"B+1"}, {DataType::kINT32}}},
                   {{"accepted_rows", {"B", "width"}, {DataType::kINT32}},
                    {"num_emitted", {"B"}, {DataType::kINT32}}},
                   {{"width", fields.integer("width")}});
}

}  // namespace

std::vector<FieldSpec> TreeAccept::field_specs() { return {integer_field("width", 1, 1 << 20)}; }

TreeAccept::TreeAccept(Fields fields) : Plugin(kName, fields, signature(fields)) {}

cudaError_t TreeAccept::launch(const Call& call) const {
  return cuda::accept(
      cuda::AcceptParams{
          .sampled = call.in<std::int64_t>(kSampled),
          .tokens = call.in<std::int64_t>(kTokens),
          .parents = call.in<std::int32_t>(kParents),
          .row_start = call.in<std::int32_t>(kRowStart),
          .requests = call.size(kRowStart, 0) - 1,
          .width = fields().integer("width"),
          .accepted_rows = call.out<std::int32_t>(0),
          .num_emitted = call.out<std::int32_t>(1),
          .emitted = nullptr,
          .src_slots = nullptr,
          .dst_slots = nullptr,
          .context_lens = nullptr,
          .block_tables = nullptr,
          .table_width = 0,
          .block_size = 0,
          .forced = nullptr,
      },
      call.stream);
}

}  // namespace trtspec::tensorrt
