// Whole text files. Everything that fails throws Error, which names the file and why.
#pragma once

#include <string>

#include "trtspec/error.hpp"

namespace trtspec {

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);
// For asking before the work is done: the file can be written later. Creates an empty one if there
// is none; what is there stays.
void check_writable(const std::string& path);

}  // namespace trtspec
