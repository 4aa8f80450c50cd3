// The backends whose engines run without Python: the only place that spells them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace trtspec {

enum class Backend { aoti, onnx, tensorrt };

// In the order of Backend.
constexpr std::array<std::string_view, 3> kBackends{"aoti", "onnx", "tensorrt"};

constexpr std::string_view name_of(Backend backend) {
  return kBackends[static_cast<std::size_t>(backend)];
}

// None of any other name.
constexpr std::optional<Backend> backend_named(std::string_view name) {
  for (std::size_t i = 0; i < kBackends.size(); ++i) {
    if (kBackends[i] == name) return static_cast<Backend>(i);
  }
  return std::nullopt;
}

}  // namespace trtspec
