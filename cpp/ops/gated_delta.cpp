#include <trtspec/gated_delta.hpp>

#include <cstring>

#include "gated_delta_kernel.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace trtspec {
namespace {

constexpr const char* kOp = "gated_delta";
constexpr double kGrain = 1 << 18;  // multiply-adds that are worth a thread

// Rows of padding, and those behind all requests.
void clear_padding(const GatedDeltaParams& p) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(p.value_heads * p.value_dim) * size_of(p.dtype);
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<char*>(p.out) + static_cast<std::size_t>(begin) * row_bytes, 0,
                static_cast<std::size_t>(end - begin) * row_bytes);
  };
  std::int64_t used = 0;
  for (std::int64_t b = 0; b < p.walk.requests; ++b) {
    used = p.walk.query_start[b + 1];
    if (p.walk.state_slots[b] < 0) clear(p.walk.query_start[b], used);
  }
  clear(used, p.walk.rows);
}

// What is behind the root of a tree may be rejected.
void keep_gates(const GatedDeltaParams& p) {
  const std::size_t row_bytes = static_cast<std::size_t>(2 * p.value_heads) * size_of(p.dtype);
  for (std::int64_t b = 0; b < p.walk.requests; ++b) {
    const std::int64_t rows = p.walk.query_start[b + 1] - p.walk.query_start[b];
    if (!p.walk.is_tree[b] || p.walk.state_slots[b] < 0 || rows < 2) continue;
    const std::size_t first = static_cast<std::size_t>(p.walk.query_start[b] + 1) * row_bytes;
    std::memcpy(static_cast<char*>(p.kept) + first, static_cast<const char*>(p.gates) + first,
                static_cast<std::size_t>(rows - 1) * row_bytes);
  }
}

}  // namespace

void gated_delta(const GatedDeltaParams& p) {
  if (p.walk.rows <= 0) return;
  check_walk(p.walk, kOp);
  clear_padding(p);
  keep_gates(p);
  const StatePlan plan = plan_walk(p.walk);
  if (plan.paths.empty()) return;
  const double work = 4 * double(plan.steps.size()) * double(p.value_heads) *
                      double(p.key_dim) * double(p.value_dim);
  const int threads = base::threads_for(work, kGrain);
  const std::int64_t row_size = 2 * (p.key_heads * p.key_dim + p.value_heads);
  const std::int64_t copies_size = plan.copies * p.key_dim * kDeltaColumns;
  const Scratch<float> rows = make_scratch<float>(p.walk.rows * row_size);
  const Scratch<float> copies = make_scratch<float>(threads * copies_size);
  const DeltaScratch scratch{rows.get(), row_size, copies.get(), copies_size};
  TRTSPEC_DISPATCH(gated_delta_kernel, p, plan.paths.data(),
                   static_cast<std::int64_t>(plan.paths.size()), scratch, threads);
}

}  // namespace trtspec
