#include "keyed_sample.hpp"

#include "../kernels.hpp"

namespace trtspec::tensorrt {

namespace {

using nvinfer1::DataType;

enum Input { kLogits, kTemperature, kTopK, kTopP, kMinP, kSeed, kSampleIndex, kOutputIndex };

Signature signature() {
  return Signature({{"logits", {"R", "V"}, {DataType::kFLOAT}},
                    {"temperature", {"R"}, {DataType::kFLOAT}},
                    {"top_k", {"R"}, {DataType::kINT32}},
                    {"top_p", {"R"}, {DataType::kFLOAT}},
                    {"min_p", {"R"}, {DataType::kFLOAT}},
                    {"seed", {"R"}, {DataType::kINT64}},
                    {"sample_index", {"R"}, {DataType::kINT64}},
                    {"output_index", {"R"}, {DataType::kINT64}}},
                   {{"ids", {"R"}, {DataType::kINT64}}});
}

}  // namespace

KeyedSample::KeyedSample(Fields fields) : Plugin(kName, std::move(fields), signature()) {}

std::size_t KeyedSample::workspace_bytes(const std::vector<nvinfer1::PluginTensorDesc>& in) const {
  return aligned(cuda::sample_workspace(in[kLogits].dims.d[0], in[kLogits].dims.d[1]));
}

cudaError_t KeyedSample::launch(const Call& call) const {
  return cuda::sample(call.in<float>(kLogits), call.size(kLogits, 0), call.size(kLogits, 1),
                      SamplingRows{
                          .temperature = call.in<float>(kTemperature),
                          .top_k = call.in<std::int32_t>(kTopK),
                          .top_p = call.in<float>(kTopP),
                          .min_p = call.in<float>(kMinP),
                          .seed = call.in<std::int64_t>(kSeed),
                          .sample_index = call.in<std::int64_t>(kSampleIndex),
                          .output_index = call.in<std::int64_t>(kOutputIndex),
                      },
                      call.out<std::int64_t>(0), call.workspace, call.stream);
}

}  // namespace trtspec::tensorrt
