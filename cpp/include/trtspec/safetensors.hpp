// SafetensorsFile: the tensors of a .safetensors file, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trtspec/error.hpp"

namespace trtspec {

// The element types that are read; others of the format (8-bit floats, unsigned integers of more
// than 8 bits) are refused.
enum class StoredType { f32, f64, f16, bf16, i64, i32, i16, i8, u8, boolean };

std::size_t size_of(StoredType type);
const char* name_of(StoredType type);

// A tensor in row-major order, only as aligned as the file aligns it; it must not be written.
struct StoredTensor {
  StoredType type;
  std::vector<std::int64_t> shape;
  const std::byte* data;
  std::size_t num_bytes;

  // Type and shape as an engine folder records them: "F32 [97, 64]".
  std::string describe() const;
};

// Type and shape of every tensor of a file by name, as `StoredTensor::describe` says them.
using WeightRecord = std::map<std::string, std::string, std::less<>>;

// Where a file's contents lie: in memory of their own, of large pages, for weights that every step
// reads; or in the system's pages of the file, of which only what is looked at is ever read.
enum class StoredIn { memory, file };

// Opens a file and checks its header: every tensor has a known type, as many bytes as type and
// shape say, and lies inside the file, behind the one before it without a gap. Throws Error that names
// the file, the tensor and the numbers; the contents of the tensors are not looked at. Pointers
// stay valid as long as the object, or one moved from it, lives.
class SafetensorsFile {
 public:
  using Tensors = std::map<std::string, StoredTensor, std::less<>>;

  explicit SafetensorsFile(const std::string& path, StoredIn where = StoredIn::memory);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  const Tensors& tensors() const;
  // Throws Error if there is none of that name.
  const StoredTensor& at(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trtspec
