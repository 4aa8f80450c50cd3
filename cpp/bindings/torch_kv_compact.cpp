#include <torch/library.h>
#include <trtspec/kv_compact.hpp>

#include "kv_compact_call.hpp"

namespace {

void kv_compact(at::TensorList caches, const at::Tensor& src_slots, const at::Tensor& dst_slots) {
  const trtspec::KvCompactCall call(caches, src_slots, dst_slots);
  for (const trtspec::CacheGroup& group : call.groups) {
    trtspec::kv_compact(group.data.data(), int64_t(group.data.size()), group.row_bytes,
                        group.num_slots, call.src.const_data_ptr<int64_t>(),
                        call.dst.const_data_ptr<int64_t>(), call.src.size(0));
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("kv_compact(Tensor(a!)[] caches, Tensor src_slots, Tensor dst_slots) -> ()");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) { m.impl("kv_compact", &kv_compact); }
