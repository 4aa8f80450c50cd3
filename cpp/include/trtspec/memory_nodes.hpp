// Machines of several memory nodes, each with memory that its own processors read fastest: threads
// that share work stay at nodes in their order, and weights lie where the threads are that read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trtspec {

// Of each node the processors that the calling thread may run on, ascending; nodes without any are
// left out.
using MemoryNodes = std::vector<std::vector<int>>;

// `root` is the folder that holds "sys". Empty where the system does not tell.
MemoryNodes memory_nodes(const std::string& root = "/");

// Keeps the calling thread at the node of thread `thread` of `threads`, as the processors of all
// nodes are shared out in order. Nothing happens where there is one node.
void stay_at_node(int thread, int threads, const MemoryNodes& nodes);

struct Copy {
  void* to;
  const void* from;
  std::int64_t bytes;
};

// Of each copy, thread t of `threads` writes the bytes from bytes * t / threads on, at its node: the
// system places a page where it is first written to. `run_tasks` gives shares of weights out so.
void copy_to_nodes(std::span<const Copy> copies, int threads);

}  // namespace trtspec
