#include <trtspec/gated_delta.hpp>

#include "gated_delta_kernel.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace trtspec {
namespace {

constexpr const char* kOp = "gated_delta";
constexpr double kGrain = 1 << 18;  // multiply-adds that are worth a thread

}  // namespace

void gated_delta(const GatedDeltaParams& p) {
  if (p.walk.rows <= 0) return;
  check_walk(p.walk, kOp);
  const std::size_t element = size_of(p.dtype);
  clear_padding(p.walk, p.out, static_cast<std::size_t>(p.value_heads * p.value_dim) * element);
  const std::size_t gates = static_cast<std::size_t>(2 * p.value_heads) * element;
  keep_nodes(p.walk, p.gates, gates, p.kept, gates);
  const StatePlan plan = plan_walk(p.walk);
  if (plan.paths.empty()) return;
  const double work = 4 * double(plan.steps.size()) * double(p.value_heads) * double(p.key_dim) *
                      double(p.value_dim);
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
