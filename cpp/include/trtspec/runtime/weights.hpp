// Weights: the tensors of a .safetensors file by name, as torch sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <trtspec/safetensors.hpp>

namespace trtspec {

using Weights = std::map<std::string, at::Tensor, std::less<>>;

// Opens a weight file. Each tensor keeps its contents alive, and must not be written. Throws Error
// for a missing or damaged file and for tensors other than `recorded` says; file, tensor and both
// values are named.
Weights open_weights(const std::string& path, const WeightRecord& recorded,
                     StoredIn where = StoredIn::memory);

}  // namespace trtspec
