#include <unistd.h>

#include <cstdio>
#include <string>

#include "check.hpp"
#include "mapped_from.hpp"
#include "trtspec/files.hpp"

using trtspec::check_writable;
using trtspec::MappedFile;
using trtspec::read_file;
using trtspec::write_file;

int main() {
  const std::string path = "/tmp/test_files_" + std::to_string(::getpid());
  CHECK_THROWS(read_file(path));
  check_writable(path);
  CHECK_EQ(read_file(path), "");
  const std::string text = std::string(200000, 'x') + '\0' + "\r\n\xff";
  write_file(path, text);
  CHECK(read_file(path) == text);
  check_writable(path);
  CHECK(read_file(path) == text);
  {
    const MappedFile mapped(path);
    const auto* data = reinterpret_cast<const char*>(mapped.bytes().data());
    CHECK(std::string(data, mapped.bytes().size()) == text);
    CHECK_EQ(mapped_from(data), path);
  }
  write_file(path, "");
  CHECK(MappedFile(path).bytes().empty());
  write_file(path, "short");
  CHECK_EQ(read_file(path), "short");
  std::remove(path.c_str());

  for (const char* bad : {"/tmp", "/nowhere/at/all"}) {
    try {
      read_file(bad);
      CHECK(false);
    } catch (const trtspec::Error& error) {
      CHECK_EQ(std::string(error.what()).find(std::string(bad) + " cannot be read: "), 0u);
    }
    CHECK_THROWS(MappedFile{bad});
    CHECK_THROWS(write_file(bad, "text"));
    CHECK_THROWS(check_writable(bad));
  }
  CHECK_THROWS(write_file("/dev/full", text));
  return check_result();
}
