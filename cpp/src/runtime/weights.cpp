#include "trtspec/runtime/weights.hpp"

#include <ATen/ops/from_blob.h>

#include <memory>
#include <trtspec/error.hpp>

namespace trtspec {

namespace {

at::ScalarType scalar_type(StoredType type) {
  switch (type) {
    case StoredType::f32: return at::kFloat;
    case StoredType::f64: return at::kDouble;
    case StoredType::f16: return at::kHalf;
    case StoredType::bf16: return at::kBFloat16;
    case StoredType::i64: return at::kLong;
    case StoredType::i32: return at::kInt;
    case StoredType::i16: return at::kShort;
    case StoredType::i8: return at::kChar;
    case StoredType::u8: return at::kByte;
    case StoredType::boolean: return at::kBool;
  }
  throw std::logic_error("a stored type without a torch type");
}

// Engines are handed weights by name alone and would read past the end of a smaller one.
void check_weights(const SafetensorsFile& file, const WeightRecord& recorded) {
  const auto fail = [&](const std::string& name, const std::string& what) {
    throw Error(file.path() + " does not fit its engine: tensor '" + name + "' " + what +
                "; rebuild the engine with trtspec-build");
  };
  for (const auto& [name, built] : recorded) {
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) fail(name, "is missing, it was built with " + built);
    const std::string here = found->second.describe();
    if (here != built) fail(name, "is " + here + ", it was built with " + built);
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (!recorded.contains(name)) fail(name, "(" + tensor.describe() + ") has no use in it");
  }
}

}  // namespace

Weights open_weights(const std::string& path, const WeightRecord& recorded, StoredIn where) {
  std::shared_ptr<const SafetensorsFile> file;
  try {
    file = std::make_shared<const SafetensorsFile>(path, where);
  } catch (const Error& error) {
    throw Error(std::string(error.what()) +
                "; the folder is damaged, rebuild it with trtspec-build");
  }
  check_weights(*file, recorded);
  Weights weights;
  for (const auto& [name, tensor] : file->tensors()) {
    // torch has no tensors that may only be read; nothing here writes to weights.
    void* data = const_cast<std::byte*>(tensor.data);
    weights[name] =
        at::from_blob(data, tensor.shape, [file](void*) {}, at::dtype(scalar_type(tensor.type)));
  }
  return weights;
}

}  // namespace trtspec
