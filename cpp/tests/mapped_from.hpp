// Which file a page of memory belongs to.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

// The path of the file that memory is a mapping of; "" if it is nobody's but the program's.
inline std::string mapped_from(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    std::sscanf(line.c_str(), "%lx-%lx", &begin, &end);
    if (begin > address || address >= end) continue;
    const std::size_t path = line.find('/');
    return path == std::string::npos ? "" : line.substr(path);
  }
  return "";
}
