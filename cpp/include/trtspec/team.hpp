// Threads that share the tasks of kernels, and read ahead while they wait for more.
#pragma once

#include <cstdint>

namespace trtspec {

// One task of a region: `body` is what the caller passed, `thread` in [0, threads).
using Task = void (*)(const void* body, std::int64_t task, int thread);

// Threads that a region may have: as many as OpenMP would use, whose setting is torch's, unless
// `take_threads` said another number; 1 within a region.
int max_threads();

// From now on regions of the calling thread may have so many threads, and those of OpenMP have one:
// its threads wait by spinning for milliseconds, and would hold the cores that the team needs. The
// thread stays at its memory node, as those of its team do.
void take_threads(int count);

// Runs task(body, i, thread) once for every i in [0, count), count < 2^32; returns when all have
// ended. Tasks must not throw.
//
// Thread t takes those of its share from the first on, [count * t / threads, count * (t + 1) /
// threads), so that what it reads lies in one piece, which processors fetch best; and once it has
// no more, others' from their last on. The calling thread has a team of its own, whose other
// threads wait by spinning for about a millisecond and then asleep. Nobody waits for them to wake:
// the caller has all tasks if nobody else is there.
void run_tasks(std::int64_t count, int threads, Task task, const void* body);

// Weights whose reading begins with the next region. Decoding reads the same weights in the same
// order call after call, so the team remembers which came next the last time; and whoever finds no
// task fetches the first megabytes of those into the caches, while others finish theirs or the
// caller is between regions, or between engine calls: memory would be idle then, and it is what
// decoding waits for.
void read_next(const void* weights, std::int64_t bytes);

}  // namespace trtspec
