// Whole files. Everything that fails throws Error, which names the file and why.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "trtspec/error.hpp"

namespace trtspec {

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);
// For asking before the work is done: the file can be written later. Creates an empty one if there
// is none; what is there stays.
void check_writable(const std::string& path);

// A file's bytes in the pages that the system keeps of it: nothing is copied, and what is not looked
// at is not read. The file must not become shorter meanwhile.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trtspec
