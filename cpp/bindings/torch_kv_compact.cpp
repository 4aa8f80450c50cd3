#include <torch/library.h>
#include <trtspec/kv_compact.hpp>

#include <vector>

#include "checks.hpp"

namespace {

void kv_compact(at::TensorList k_caches, at::TensorList v_caches, const at::Tensor& src_slots,
                const at::Tensor& dst_slots) {
  using namespace trtspec;
  TORCH_CHECK(k_caches.size() == v_caches.size(), "kv_compact: ", k_caches.size(),
              " k_caches but ", v_caches.size(), " v_caches");
  check_dim("kv_compact", "src_slots", src_slots, 1);
  check_dtype("kv_compact", "src_slots", src_slots, at::kLong);
  check_dtype("kv_compact", "dst_slots", dst_slots, at::kLong);
  check_shape("kv_compact", "dst_slots", dst_slots, src_slots.sizes());
  const at::Tensor src = src_slots.contiguous();
  const at::Tensor dst = dst_slots.contiguous();
  // Caches of one call usually have one shape; those of another shape go in a call of their own.
  for (const at::TensorList caches : {k_caches, v_caches}) {
    for (size_t i = 0; i < caches.size();) {
      const at::Tensor& first = caches[i];
      check_dim("kv_compact", "a cache", first, 4);
      std::vector<void*> data;
      for (; i < caches.size() && caches[i].sizes() == first.sizes() &&
             caches[i].scalar_type() == first.scalar_type();
           ++i) {
        TORCH_CHECK(caches[i].is_contiguous(), "kv_compact: cache ", i, " is not contiguous");
        data.push_back(caches[i].mutable_data_ptr());
      }
      trtspec::kv_compact(data.data(), int64_t(data.size()),
                          first.size(2) * first.size(3) * int64_t(first.element_size()),
                          first.size(0) * first.size(1), src.const_data_ptr<int64_t>(),
                          dst.const_data_ptr<int64_t>(), src.size(0));
    }
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "kv_compact(Tensor(a!)[] k_caches, Tensor(b!)[] v_caches, Tensor src_slots, "
      "Tensor dst_slots) -> ()");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("kv_compact", &kv_compact); }
