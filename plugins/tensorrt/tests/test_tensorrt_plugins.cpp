// What TensorRT asks of the plugins outside of a launch: creation from fields, formats, shapes,
// serialisation, aliases, refusals. Needs neither a GPU nor libnvinfer.
#include <cstring>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "fakes.hpp"
#include "given.hpp"

namespace {

using namespace given;
using nvinfer1::DataType;
using nvinfer1::TensorRTPhase;

constexpr auto f32 = DataType::kFLOAT;
constexpr auto f16 = DataType::kHALF;
constexpr auto bf16 = DataType::kBF16;
constexpr auto i32 = DataType::kINT32;
constexpr auto i64 = DataType::kINT64;

fakes::Logger logger;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A plugin with fields and tensors that fit it. Inputs are dynamic in their first dimension.
struct Example {
  std::string name;
  Given fields;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
};

// clang-format off: tables
Example tree_mask(const char* dtype = "float16", DataType type = f16) {
  return {"TreeMask",
          Given().word("mask_dtype", dtype).integer("sliding_window", 0),
          {{i64, {3, 5}}, {i64, {11}}, {i64, {11}}, {i32, {4}}, {i32, {3}}, {i32, {3}},
           {i64, {11, 2}}, {i64, {96}}},
          {{type, {3, 1, 5, 96}}}};
}

Example keyed_sample() {
  return {"KeyedSample",
          Given(),
          {{f32, {6, 1000}}, {f32, {6}}, {i32, {6}}, {f32, {6}}, {f32, {6}}, {i64, {6}}, {i64, {6}},
           {i64, {6}}},
          {{i64, {6}}}};
}

Example tree_accept() {
  return {"TreeAccept",
          Given().integer("width", 8),
          {{i64, {11}}, {i64, {11}}, {i32, {11}}, {i32, {4}}},
          {{i32, {3, 8}}, {i32, {3}}}};
}

Example attention(DataType type = bf16) {
  return {"PagedTreeAttention",
          Given()
              .integer("num_heads", 8)
              .integer("num_kv_heads", 2)
              .integer("head_dim", 64)
              .number("scale", 0.125F)
              .integer("sliding_window", 0)
              .number("soft_cap", 0),
          {{type, {11, 8, 64}}, {type, {11, 2, 64}}, {type, {11, 2, 64}}, {type, {20, 16, 2, 64}},
           {type, {20, 16, 2, 64}}, {i64, {11}}, {i64, {11}}, {i32, {3, 9}}, {i32, {4}}, {i32, {3}},
           {i32, {3}}, {i64, {11, 2}}},
          {{type, {11, 8, 64}}, {type, {20, 16, 2, 64}}, {type, {20, 16, 2, 64}}}};
}

std::vector<Example> examples() {
  return {tree_mask(),     tree_mask("float32", f32), tree_mask("bfloat16", bf16),
          keyed_sample(),  tree_accept(),             attention(),
          attention(f16),  attention(f32)};
}
// clang-format on

std::vector<Tensor> all_of(const Example& example) {
  std::vector<Tensor> all = example.inputs;
  all.insert(all.end(), example.outputs.begin(), example.outputs.end());
  return all;
}

// Shapes of the outputs, empty if the plugin refuses.
std::vector<std::vector<std::int64_t>> shapes(nvinfer1::IPluginV3& plugin, const Example& example,
                                              bool constant) {
  fakes::ExprBuilder builder;
  std::vector<nvinfer1::DimsExprs> inputs(example.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].nbDims = std::int32_t(example.inputs[i].dims.size());
    for (std::size_t d = 0; d < example.inputs[i].dims.size(); ++d) {
      inputs[i].d[d] = builder.make(example.inputs[i].dims[d], constant || d > 0);
    }
  }
  std::vector<nvinfer1::DimsExprs> outputs(example.outputs.size());
  if (build_of(plugin)->getOutputShapes(inputs.data(), std::int32_t(inputs.size()), nullptr, 0,
                                        outputs.data(), std::int32_t(outputs.size()),
                                        builder) != 0) {
    return {};
  }
  std::vector<std::vector<std::int64_t>> dims(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::int32_t d = 0; d < outputs[i].nbDims; ++d) {
      dims[i].push_back(static_cast<const fakes::Expr*>(outputs[i].d[d])->value());
    }
  }
  return dims;
}

std::int32_t on_shape_change(nvinfer1::IPluginV3& plugin, const std::vector<Tensor>& inputs) {
  std::vector<nvinfer1::PluginTensorDesc> descs;
  for (const DynamicPluginTensorDesc& desc : descs_of(inputs)) descs.push_back(desc.desc);
  return runtime_of(plugin)->onShapeChange(descs.data(), std::int32_t(descs.size()), nullptr, 0);
}

void test_library() {
  std::int32_t count = 0;
  nvinfer1::IPluginCreatorInterface* const* all = getCreators(count);
  CHECK_EQ(count, 4);
  std::set<std::string> names;
  for (std::int32_t i = 0; i < count; ++i) {
    CHECK(std::strcmp(all[i]->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") == 0);
    auto* creator = static_cast<IPluginCreatorV3One*>(all[i]);
    names.insert(creator->getPluginName());
    CHECK(std::strcmp(creator->getPluginNamespace(), "trtspec") == 0);
    CHECK(std::strcmp(creator->getPluginVersion(), "1") == 0);
  }
  CHECK((names ==
         std::set<std::string>{"TreeMask", "KeyedSample", "TreeAccept", "PagedTreeAttention"}));
}

void test_identity(const Example& example) {
  const PluginPtr plugin = example.fields.create(example.name);
  CHECK(plugin != nullptr);
  CHECK_EQ(logger.taken(), std::string());
  auto* core = static_cast<nvinfer1::IPluginV3OneCore*>(
      plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  CHECK_EQ(std::string(core->getPluginName()), example.name);
  CHECK_EQ(std::string(core->getPluginNamespace()), std::string("trtspec"));
  CHECK_EQ(std::string(core->getPluginVersion()), std::string("1"));
  CHECK_EQ(build_of(*plugin)->getNbOutputs(), std::int32_t(example.outputs.size()));
  CHECK_EQ(build_of(*plugin)->getInterfaceInfo().major, 2);  // aliases are asked for
}

void test_formats(const Example& example) {
  const PluginPtr plugin = example.fields.create(example.name);
  const auto num_inputs = std::int32_t(example.inputs.size());
  const auto num_outputs = std::int32_t(example.outputs.size());
  const std::vector<Tensor> tensors = all_of(example);
  const auto supported = [&](std::int32_t pos, const std::vector<DynamicPluginTensorDesc>& descs) {
    return build_of(*plugin)->supportsFormatCombination(pos, descs.data(), num_inputs, num_outputs);
  };
  for (std::int32_t pos = 0; pos < num_inputs + num_outputs; ++pos) {
    std::vector<DynamicPluginTensorDesc> descs = descs_of(tensors);
    CHECK(supported(pos, descs));
    descs[std::size_t(pos)].desc.format = nvinfer1::TensorFormat::kHWC8;
    CHECK(!supported(pos, descs));
    descs[std::size_t(pos)].desc.format = nvinfer1::TensorFormat::kLINEAR;
    const bool free = example.name == "PagedTreeAttention" && pos == 0;
    for (const DataType type : {f32, f16, bf16, i32, i64, DataType::kINT8, DataType::kBOOL}) {
      descs[std::size_t(pos)].desc.type = type;
      const bool fits = type == tensors[std::size_t(pos)].type ||
                        (free && (type == f32 || type == f16 || type == bf16));
      CHECK_EQ(supported(pos, descs), fits);
    }
  }
  std::vector<DynamicPluginTensorDesc> descs = descs_of(tensors);
  CHECK(
      !build_of(*plugin)->supportsFormatCombination(0, descs.data(), num_inputs - 1, num_outputs));

  std::vector<DataType> inputs;
  for (const Tensor& tensor : example.inputs) inputs.push_back(tensor.type);
  std::vector<DataType> outputs(example.outputs.size(), DataType::kFP8);
  CHECK_EQ(
      build_of(*plugin)->getOutputDataTypes(outputs.data(), num_outputs, inputs.data(), num_inputs),
      0);
  for (std::size_t i = 0; i < outputs.size(); ++i) CHECK(outputs[i] == example.outputs[i].type);
}

void test_shapes(const Example& example) {
  const PluginPtr plugin = example.fields.create(example.name);
  std::vector<std::vector<std::int64_t>> expected;
  for (const Tensor& tensor : example.outputs) expected.push_back(tensor.dims);
  CHECK(shapes(*plugin, example, true) == expected);
  CHECK(shapes(*plugin, example, false) == expected);
  CHECK_EQ(on_shape_change(*plugin, example.inputs), 0);
  CHECK_EQ(logger.taken(), std::string());

  // Each dimension alone: larger by one, it contradicts another or it is free.
  std::size_t refused = 0;
  for (std::size_t i = 0; i < example.inputs.size(); ++i) {
    for (std::size_t d = 0; d < example.inputs[i].dims.size(); ++d) {
      Example other = example;
      ++other.inputs[i].dims[d];
      const bool bad = on_shape_change(*plugin, other.inputs) != 0;
      CHECK_EQ(bad, has(logger.taken(), example.name));
      CHECK_EQ(bad, shapes(*plugin, other, true).empty());
      logger.taken();
      refused += bad;
    }
    std::vector<Tensor> flat = example.inputs;
    flat[i].dims.push_back(1);
    CHECK(on_shape_change(*plugin, flat) != 0);
    CHECK(has(logger.taken(), "dimensions"));
    // A dimension that is not known yet is not checked.
    std::vector<Tensor> unknown = example.inputs;
    unknown[i].dims[0] = -1;
    const auto descs = descs_of(unknown);
    CHECK_EQ(
        build_of(*plugin)->configurePlugin(descs.data(), std::int32_t(descs.size()), nullptr, 0),
        0);
  }
  const std::size_t expected_refusals = example.name == "TreeMask"      ? 7
                                        : example.name == "KeyedSample" ? 8
                                        : example.name == "TreeAccept"  ? 3
                                                                        : 24;
  CHECK_EQ(refused, expected_refusals);
  std::vector<Tensor> fewer = example.inputs;
  fewer.pop_back();
  CHECK(on_shape_change(*plugin, fewer) != 0);
  CHECK(has(logger.taken(), "inputs"));
}

void test_serialisation(const Example& example) {
  const PluginPtr plugin = example.fields.create(example.name);
  const PluginPtr copy(plugin->clone());
  CHECK(copy != nullptr && copy.get() != plugin.get());
  const PluginPtr attached(runtime_of(*plugin)->attachToContext(nullptr));
  CHECK(attached != nullptr && attached.get() != plugin.get());
  const std::string id = build_of(*plugin)->getTimingCacheID();
  CHECK_EQ(std::string(build_of(*copy)->getTimingCacheID()), id);

  // From the clone after the original's fields were asked for: no view of one into the other.
  CHECK(runtime_of(*plugin)->getFieldsToSerialize() != nullptr);
  const nvinfer1::PluginFieldCollection* fields = runtime_of(*copy)->getFieldsToSerialize();
  const PluginPtr restored(
      creator_of(example.name)->createPlugin("layer", fields, TensorRTPhase::kRUNTIME));
  CHECK(restored != nullptr);
  CHECK_EQ(std::string(build_of(*restored)->getTimingCacheID()), id);
  CHECK_EQ(logger.taken(), std::string());
  std::vector<std::vector<std::int64_t>> expected;
  for (const Tensor& tensor : example.outputs) expected.push_back(tensor.dims);
  CHECK(shapes(*restored, example, false) == expected);

  const nvinfer1::PluginFieldCollection* announced = creator_of(example.name)->getFieldNames();
  CHECK_EQ(announced->nbFields, fields->nbFields);
  for (std::int32_t i = 0; i < announced->nbFields; ++i) {
    CHECK(std::strcmp(announced->fields[i].name, fields->fields[i].name) == 0);
    CHECK(announced->fields[i].type == fields->fields[i].type);
  }
}

void test_required_fields(const Example& example) {
  const nvinfer1::PluginFieldCollection* announced = creator_of(example.name)->getFieldNames();
  for (std::int32_t i = 0; i < announced->nbFields; ++i) {
    const std::string name = announced->fields[i].name;
    CHECK(example.fields.without(name).create(example.name) == nullptr);
    CHECK(has(logger.taken(), "field " + name + " is missing"));
  }
  Given more = example.fields;
  CHECK(more.integer("colour", 1).create(example.name) == nullptr);
  CHECK(has(logger.taken(), "field colour is unknown"));
}

void test_refused_values() {
  const auto refused = [](const std::string& plugin, const Given& fields, const std::string& why) {
    CHECK(fields.create(plugin) == nullptr);
    const std::string said = logger.taken();
    if (!has(said, why)) std::printf("said: %s\n", said.c_str());
    CHECK(has(said, why) && has(said, plugin));
  };
  const Given accept = tree_accept().fields;
  const Given without = accept.without("width");
  refused("TreeAccept", Given(without).integer("width", 0), "field width must be from 1");
  refused("TreeAccept", Given(without).long_integer("width", std::int64_t{1} << 40), "got 1099511");
  refused("TreeAccept", Given(without).number("width", 8), "int32 or int64");
  refused("TreeAccept", Given(accept).integer("width", 8), "given twice");
  CHECK(Given(without).long_integer("width", 8).create("TreeAccept") != nullptr);

  const Given mask = tree_mask().fields;
  refused("TreeMask", mask.without("mask_dtype").word("mask_dtype", "int8"),
          "one of float32, float16, bfloat16, got int8");
  refused("TreeMask", mask.without("mask_dtype").integer("mask_dtype", 0), "must be characters");
  refused("TreeMask", mask.without("sliding_window").integer("sliding_window", -1),
          "field sliding_window must be from 0");
  // A C string with its end counted, as some callers give it.
  Given ended = mask.without("mask_dtype");
  CHECK(ended.word("mask_dtype", std::string("float16\0", 8)).create("TreeMask") != nullptr);

  const Given attend = attention().fields;
  refused("PagedTreeAttention", attend.without("scale").number("scale", 0), "field scale");
  refused("PagedTreeAttention", attend.without("scale").number("scale", NAN), "finite");
  refused("PagedTreeAttention", attend.without("scale").integer("scale", 1), "float32 or float64");
  refused("PagedTreeAttention", attend.without("soft_cap").number("soft_cap", -1.0F),
          "field soft_cap must be a finite number from 0 on, got -1");
  refused("PagedTreeAttention", attend.without("num_heads").integer("num_heads", 7),
          "multiple of num_kv_heads, got 7 and 2");
  refused("PagedTreeAttention", attend.without("head_dim").integer("head_dim", 257), "256");
}

void test_cache_ids() {
  const auto id = [](const Given& fields) {
    const PluginPtr plugin = fields.create("PagedTreeAttention");
    return std::string(build_of(*plugin)->getTimingCacheID());
  };
  const Given fields = attention().fields;
  const Given near = fields.without("scale").number("scale", std::nextafter(0.125F, 1.0F));
  CHECK(id(fields) != id(near));
  CHECK(id(fields) == id(fields));
}

void test_aliases() {
  const PluginPtr attend = attention().fields.create("PagedTreeAttention");
  CHECK_EQ(build_of(*attend)->getAliasedInput(0), -1);
  CHECK_EQ(build_of(*attend)->getAliasedInput(1), 3);
  CHECK_EQ(build_of(*attend)->getAliasedInput(2), 4);
  const PluginPtr accept = tree_accept().fields.create("TreeAccept");
  CHECK_EQ(build_of(*accept)->getAliasedInput(0), -1);
}

// Caches that were copied are refused before anything is launched.
void test_copied_caches() {
  const Example example = attention();
  const PluginPtr plugin = example.fields.create(example.name);
  std::vector<nvinfer1::PluginTensorDesc> descs;
  for (const auto& desc : descs_of(example.inputs)) descs.push_back(desc.desc);
  char memory[32];
  std::vector<const void*> inputs;
  for (std::size_t i = 0; i < example.inputs.size(); ++i) inputs.push_back(memory + i);
  const std::vector<void*> outputs = {memory + 20, memory + 21, memory + 4};
  CHECK(runtime_of(*plugin)->enqueue(descs.data(), nullptr, inputs.data(), outputs.data(), memory,
                                     nullptr) != 0);
  CHECK(has(logger.taken(), "kALIASED_PLUGIN_IO_10_03"));
}

// Enough for the largest sizes of a profile is enough for any.
void test_workspace() {
  const auto bytes = [](const Example& example) {
    const PluginPtr plugin = example.fields.create(example.name);
    const auto inputs = descs_of(example.inputs);
    return build_of(*plugin)->getWorkspaceSize(inputs.data(), std::int32_t(inputs.size()), nullptr,
                                               0);
  };
  const auto attention_of = [](std::int64_t rows, std::int64_t requests) {
    Example example = attention();
    for (const std::size_t i : {0, 1, 2, 5, 6, 11}) example.inputs[i].dims[0] = rows;
    for (const std::size_t i : {7, 9, 10}) example.inputs[i].dims[0] = requests;
    example.inputs[8].dims[0] = requests + 1;
    example.inputs[7].dims[1] = 2048;  // long enough for keys to be divided among blocks
    return example;
  };
  const std::size_t most = bytes(attention_of(512, 32));
  CHECK(most >= 256);
  for (std::int64_t rows = 1; rows <= 512; rows += rows < 32 ? 1 : 16) {
    for (const std::int64_t requests : {1, 2, 8, 32}) {
      CHECK(bytes(attention_of(rows, requests)) <= most);
    }
  }
  CHECK(bytes(tree_mask()) >= 3);
  CHECK_EQ(bytes(tree_accept()), std::size_t(0));
}

}  // namespace

int main() {
  setLoggerFinder(&logger);
  test_library();
  for (const Example& example : examples()) {
    test_identity(example);
    test_formats(example);
    test_shapes(example);
    test_serialisation(example);
    test_required_fields(example);
  }
  test_refused_values();
  test_cache_ids();
  test_aliases();
  test_copied_caches();
  test_workspace();
  setLoggerFinder(nullptr);
  return check_result();
}
