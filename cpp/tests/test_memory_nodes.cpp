#include "trtspec/memory_nodes.hpp"

#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

using trtspec::copy_to_nodes;
using trtspec::memory_nodes;
using trtspec::MemoryNodes;
using trtspec::stay_at_node;

namespace {

namespace fs = std::filesystem;

std::vector<int> processors() {
  cpu_set_t set;
  CHECK(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
  }
  return found;
}

// Where a thread may run that stays at its node.
std::vector<int> place(int thread, int threads, const MemoryNodes& nodes) {
  std::vector<int> found;
  std::thread([&] {
    stay_at_node(thread, threads, nodes);
    found = processors();
  }).join();
  return found;
}

// Lists of processors as the kernel writes them; a node without memory of its own has none.
void test_nodes_are_read() {
  const fs::path root = fs::temp_directory_path() / ("test_nodes_" + std::to_string(::getpid()));
  const fs::path nodes = root / "sys/devices/system/node";
  const auto write = [&](const std::string& name, const std::string& list) {
    fs::create_directories(nodes / name);
    std::ofstream(nodes / name / "cpulist") << list << "\n";
  };
  CHECK(memory_nodes(root).empty());
  const std::vector<int> own = processors();
  const std::string first = std::to_string(own.front());
  write("node10", first + "-" + first);
  write("node2", "");
  write("power", first);
  write("node", first);
  CHECK((memory_nodes(root) == MemoryNodes{{own.front()}}));
  if (own.size() > 1) {
    // By their numbers, whatever the folder's order; a processor that is not ours counts nowhere.
    write("node3", std::to_string(own.back()) + "," + std::to_string(CPU_SETSIZE - 1) + ",100000");
    CHECK((memory_nodes(root) == MemoryNodes{{own.back()}, {own.front()}}));
    write("node3", "0-" + std::to_string(own.back()));
    CHECK(memory_nodes(root).front() == own);
  }
  fs::remove_all(root);
}

void test_threads_stay_in_order() {
  const std::vector<int> own = processors();
  CHECK(place(0, 2, {}) == own);
  CHECK(place(1, 2, {{own.front()}}) == own);  // one node: nothing to gain
  if (own.size() < 2) return;
  const int a = own[0], b = own[1];
  const MemoryNodes nodes{{a}, {b}};
  for (const int threads : {1, 2, 3, 8}) {
    for (int thread = 0; thread < threads; ++thread) {
      CHECK_EQ(place(thread, threads, nodes).front(), 2 * thread < threads ? a : b);
    }
  }
  CHECK((place(3, 4, {{a}, {a, b}, {b}}) == std::vector<int>{b}));
  CHECK((place(1, 4, {{a}, {a, b}, {b}}) == std::vector<int>{a, b}));
  CHECK(processors() == own);  // the caller is not moved
}

void test_copies_are_whole() {
  for (const int threads : {1, 2, 3, 7}) {
    std::vector<std::vector<unsigned char>> from, to;
    std::vector<trtspec::Copy> copies;
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000, 100001}) {
      from.emplace_back(bytes);
      std::iota(from.back().begin(), from.back().end(), static_cast<unsigned char>(bytes));
      to.emplace_back(bytes);
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      copies.push_back({to[i].data(), from[i].data(), std::int64_t(from[i].size())});
    }
    copy_to_nodes(copies, threads);
    CHECK(to == from);
  }
}

}  // namespace

int main() {
  test_nodes_are_read();
  test_threads_stay_in_order();
  test_copies_are_whole();
  return check_result();
}
