#include "trtspec/memory_nodes.hpp"

#include <sched.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

namespace trtspec {

namespace {

constexpr std::int64_t kLineBytes = 64;

// The processors of a list like "0-3,8-11".
std::vector<int> listed(const std::string& list) {
  std::vector<int> found;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream bounds(part);
    int first = 0, last = 0;
    if (!(bounds >> first)) continue;
    last = bounds.get() == '-' && bounds >> last ? last : first;
    for (int cpu = first; cpu <= last; ++cpu) found.push_back(cpu);
  }
  return found;
}

// Where the share of a thread begins, at a line of the caches.
std::int64_t share_begin(std::int64_t bytes, int thread, int threads) {
  if (thread == threads) return bytes;
  return bytes / threads * thread / kLineBytes * kLineBytes;
}

}  // namespace

MemoryNodes memory_nodes(const std::string& root) {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return {};  // more than cpu_set_t holds
  std::map<int, std::vector<int>> nodes;
  std::error_code none;
  const std::string folder = root + "/sys/devices/system/node";
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const bool numbered = name.size() > 4 && name.find_first_not_of("0123456789", 4) == name.npos;
    if (!name.starts_with("node") || !numbered) continue;
    std::ifstream file(entry.path() / "cpulist");
    std::string list;
    std::getline(file, list);
    for (const int cpu : listed(list)) {
      const bool ours = cpu < CPU_SETSIZE && CPU_ISSET(cpu, &usable);
      if (ours) nodes[std::stoi(name.substr(4))].push_back(cpu);
    }
  }
  MemoryNodes found;
  for (auto& [number, cpus] : nodes) found.push_back(std::move(cpus));
  return found;
}

void stay_at_node(int thread, int threads, const MemoryNodes& nodes) {
  if (nodes.size() < 2) return;
  std::size_t cpus = 0;
  for (const auto& node : nodes) cpus += node.size();
  std::size_t place = static_cast<std::size_t>(thread) * cpus / static_cast<std::size_t>(threads);
  auto node = nodes.begin();
  while (place >= node->size()) place -= (node++)->size();
  cpu_set_t own;
  CPU_ZERO(&own);
  for (const int cpu : *node) CPU_SET(cpu, &own);
  ::sched_setaffinity(0, sizeof own, &own);  // where it is refused, reading is slower, no more
}

void copy_to_nodes(std::span<const Copy> copies, int threads) {
  const MemoryNodes nodes = memory_nodes();
  const auto write_share = [&](int thread) {
    stay_at_node(thread, threads, nodes);
    for (const Copy& copy : copies) {
      const std::int64_t begin = share_begin(copy.bytes, thread, threads);
      const std::int64_t end = share_begin(copy.bytes, thread + 1, threads);
      if (begin == end) continue;  // an empty tensor may have no address, and memcpy wants one
      std::memcpy(static_cast<std::byte*>(copy.to) + begin,
                  static_cast<const std::byte*>(copy.from) + begin,
                  static_cast<std::size_t>(end - begin));
    }
  };
  // Threads of their own: the caller's is not to be moved.
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread) all.emplace_back(write_share, thread);
  for (std::thread& each : all) each.join();
}

}  // namespace trtspec
