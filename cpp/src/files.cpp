#include "trtspec/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace trtspec {

namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(path + " cannot be " + what + ": " + std::strerror(errno));
}

}  // namespace

std::string read_file(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(path, "read");
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, count);
  }
  if (std::ferror(file.get())) fail(path, "read");
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) fail(path, "written");
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  // Closing writes what is still in the buffer, so it fails where the disk is full.
  if (std::fclose(file.release()) != 0 || !written) fail(path, "written");
}

void check_writable(const std::string& path) {
  if (!File(std::fopen(path.c_str(), "ab"))) fail(path, "written");
}

MappedFile::MappedFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path, "read");
  struct stat facts{};
  bool mapped = ::fstat(file, &facts) == 0;
  if (mapped && !S_ISREG(facts.st_mode)) {
    errno = S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
    mapped = false;
  }
  if (mapped && facts.st_size > 0) {
    size_ = static_cast<std::size_t>(facts.st_size);
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    mapped = data != MAP_FAILED;
    if (mapped) data_ = static_cast<const std::byte*>(data);
  }
  const int error = errno;
  ::close(file);
  errno = error;
  if (!mapped) fail(path, "read");
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace trtspec
