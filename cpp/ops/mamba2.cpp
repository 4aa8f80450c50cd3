#include <trtspec/mamba2.hpp>

#include "mamba2_kernel.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "state_walk.hpp"

namespace trtspec {
namespace {

constexpr double kGrain = 1 << 17;  // elements of states, once a row, that are worth a thread

}  // namespace

void mamba2(const Mamba2Params& p) {
  if (p.walk.rows <= 0) return;
  check_walk(p.walk, "mamba2");
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(p.dtype);
  };
  clear_padding(p.walk, p.out, bytes(p.heads * p.head_dim));
  keep_nodes(p.walk, p.dt, bytes(p.dt_row_stride), p.kept, bytes(p.heads));
  const StatePlan plan = plan_walk(p.walk);
  if (plan.paths.empty()) return;
  const double work = double(p.walk.rows) * double(p.heads * p.head_dim * p.state_size);
  const int threads = base::threads_for(work, kGrain);
  const Scratch<float> scratch =
      make_scratch<float>(threads * mamba2_scratch(p.state_size, plan.copies));
  TRTSPEC_DISPATCH(mamba2_kernel, p, plan.paths.data(), std::int64_t(plan.paths.size()),
                   plan.copies, scratch.get(), threads);
}

}  // namespace trtspec
