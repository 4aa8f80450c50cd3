#include "trtspec/runtime/weights.hpp"

#include <ATen/ops/from_blob.h>

#include <memory>
#include <trtspec/error.hpp>
#include <trtspec/safetensors.hpp>

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

}  // namespace

Weights map_weights(const std::string& path) {
  std::shared_ptr<const SafetensorsFile> file;
  try {
    file = std::make_shared<const SafetensorsFile>(path);
  } catch (const Error& error) {
    throw Error(std::string(error.what()) +
                "; the folder is damaged, rebuild it with trtspec-build");
  }
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
