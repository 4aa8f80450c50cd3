#include <trtspec/head_products.hpp>

#include "head_products_kernel.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace trtspec {

void head_products(const HeadProductsParams& p) {
  if (p.rows <= 0) return;
  constexpr double kGrain = 1 << 18;  // multiply-adds that are worth a thread
  const double work = double(p.rows) * double(p.heads) * double(p.inputs) * double(p.outputs);
  const int threads = base::threads_for(work, kGrain);
  const Scratch<float> scratch =
      make_scratch<float>(threads * kProductRows * (p.inputs + padded_outputs(p.outputs)));
  TRTSPEC_DISPATCH(head_products_kernel, p, scratch.get(), threads);
}

}  // namespace trtspec
