// What this process may have of its machine: the least of what the machine has and what each control
// group above the process (v1 and v2, as containers are limited by) allows.
#pragma once

#include <cstdint>
#include <string>

namespace trtspec {

// Bytes of memory that can be had without swapping. Files that the kernel keeps in memory count as
// free, for the machine and within the limit of a group. `root` is the folder that holds "proc" and
// "sys".
std::int64_t available_memory(const std::string& root = "/");

// Processors that can be kept busy, at least 1: those that the process may run on, or fewer where a
// quota of processor time allows fewer; of a quota of 2.5 processors, 2.
int usable_cpus(const std::string& root = "/");

// Of a processor's instruction set extensions, named as the kernel names them and separated by
// spaces, those that this one lacks; "" where the kernel says nothing.
std::string missing_instructions(const std::string& names, const std::string& root = "/");

// Threads to use where nobody has chosen a number and OpenMP, or torch, would take `threads`: at
// most `usable_cpus`, as threads beyond a quota stop all others once it is used up. What
// OMP_NUM_THREADS or MKL_NUM_THREADS says is chosen.
int default_threads(int threads);

}  // namespace trtspec
