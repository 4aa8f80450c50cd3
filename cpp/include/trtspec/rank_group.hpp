// Ranks: processes of one host that compute a network together, over memory that they share.
#pragma once

#include <trtspec/dtype.hpp>

#include <cstdint>

namespace trtspec {

// What one rank has of the group. All ranks make the same calls in the same order, each one call at
// a time. A call waits, asleep, until every rank has come to it: ranks have a core each, if that,
// and one that spins may hold the core that another one needs.
class RankGroup {
 public:
  static std::int64_t memory_bytes(int ranks);

  // `memory`: a file of so many bytes, zeros where no rank has written; it may be closed afterwards.
  // `patience`: seconds that a rank waits for another. Throws Error for a rank that is none, or a
  // file that cannot be mapped.
  RankGroup(int memory, int rank, int ranks, double patience);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // out[i] = x_0[i] + x_1[i] + ..., in the order of the ranks, in float32, rounded once. `out` may
  // be `x`. Throws Error if the group was ended, or a rank did not come.
  void all_reduce(const void* x, void* out, std::int64_t count, DType dtype);

  // Rows x [rows, columns] of all ranks side by side, in their order, as far as `width` goes:
  // out [rows, width], width <= ranks * columns. Throws as all_reduce does.
  void all_gather(const float* x, float* out, std::int64_t rows, std::int64_t columns,
                  std::int64_t width);

  // Calls of every rank throw from now on, those that wait included. May come from any thread.
  void end();

 private:
  struct Shared;

  // All ranks put something of theirs into their place, and then read those of all. `fill` is given
  // its own place, `read` the parity with which `place` finds those of others.
  template <class Fill, class Read>
  void exchange(const Fill& fill, const Read& read);
  void wait_for(int rank) const;
  void require_running() const;
  char* place(int rank, std::uint32_t parity) const;

  const int rank_, ranks_;
  const double patience_;
  std::uint32_t step_ = 0;
  Shared* shared_ = nullptr;
};

}  // namespace trtspec
