// Weights: the tensors of a .safetensors file by name, as torch sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace trtspec {

using Weights = std::map<std::string, at::Tensor, std::less<>>;

// Maps a weight file; pages are read when first used. Each tensor keeps the mapping alive, and must
// not be written. Throws Error for a missing or damaged file; file and tensor are named.
Weights map_weights(const std::string& path);

}  // namespace trtspec
