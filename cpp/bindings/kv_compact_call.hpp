// A call of trtspec::kv_compact (contract: trtspec/ops/kv_compact.py), checked for what shapes and
// dtypes can tell, as the kernels of any device take it.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "checks.hpp"

namespace trtspec {

// Caches of one shape and type.
struct CacheGroup {
  std::vector<void*> data;
  int64_t row_bytes;
  int64_t num_slots;
};

struct KvCompactCall {
  KvCompactCall(at::TensorList caches, const at::Tensor& src_slots, const at::Tensor& dst_slots)
      : src(src_slots.contiguous()), dst(dst_slots.contiguous()) {
    check_dim("kv_compact", "src_slots", src_slots, 1);
    check_dtype("kv_compact", "src_slots", src_slots, at::kLong);
    check_dtype("kv_compact", "dst_slots", dst_slots, at::kLong);
    check_shape("kv_compact", "dst_slots", dst_slots, src_slots.sizes());
    check_device("kv_compact", "dst_slots", dst_slots, src_slots);
    // Caches of one call usually have one shape; those of another shape form a group of their own.
    for (size_t i = 0; i < caches.size();) {
      const at::Tensor& first = caches[i];
      check_dim("kv_compact", "a cache", first, 4);
      CacheGroup group{{},
                       first.size(2) * first.size(3) * int64_t(first.element_size()),
                       first.size(0) * first.size(1)};
      for (; i < caches.size() && caches[i].sizes() == first.sizes() &&
             caches[i].scalar_type() == first.scalar_type();
           ++i) {
        TORCH_CHECK(caches[i].is_contiguous(), "kv_compact: cache ", i, " is not contiguous");
        check_device("kv_compact", "a cache", caches[i], src_slots);
        group.data.push_back(caches[i].mutable_data_ptr());
      }
      groups.push_back(std::move(group));
    }
  }

  at::Tensor src, dst;  // contiguous
  std::vector<CacheGroup> groups;
};

}  // namespace trtspec
