// trtspec::all_reduce, all_gather (contract: trtspec/ops/collectives.py) and RankGroup as torch sees
// it.
#include <ATen/ops/empty.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/rank_group.hpp>

#include "checks.hpp"
#include "shim.hpp"

namespace {

struct RankGroupHolder : torch::CustomClassHolder {
  RankGroupHolder(int64_t memory, int64_t rank, int64_t ranks, double patience)
      : group(int(memory), int(rank), int(ranks), patience) {}

  static int64_t memory_bytes(int64_t ranks) {
    return trtspec::RankGroup::memory_bytes(int(ranks));
  }
  // What stands for the group in a graph's inputs, for as long as this object lives.
  int64_t address() { return reinterpret_cast<int64_t>(&group); }
  void end() { group.end(); }

  trtspec::RankGroup group;
};

trtspec::RankGroup& group_of(const char* op, const at::Tensor& group) {
  trtspec::check_shape(op, "group", group, {1, 1});
  trtspec::check_dtype(op, "group", group, at::kLong);
  const int64_t address = *group.const_data_ptr<int64_t>();
  TORCH_CHECK(address != 0, op, ": the network was opened without its ranks");
  return *reinterpret_cast<trtspec::RankGroup*>(address);
}

at::Tensor all_reduce(const at::Tensor& x, const at::Tensor& group) {
  constexpr const char* op = "all_reduce";
  const trtspec::DType dtype = trtspec::kernel_dtype(op, "x", x.scalar_type());
  const at::Tensor own = x.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  group_of(op, group).all_reduce(own.const_data_ptr(), out.mutable_data_ptr(), own.numel(), dtype);
  return out;
}

at::Tensor all_gather(const at::Tensor& x, const at::Tensor& group, int64_t width) {
  constexpr const char* op = "all_gather";
  trtspec::check_dim(op, "x", x, 2);
  trtspec::check_dtype(op, "x", x, at::kFloat);
  const at::Tensor own = x.contiguous();
  at::Tensor out = at::empty({x.size(0), width}, x.options());
  group_of(op, group).all_gather(own.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                                 x.size(0), x.size(1), width);
  return out;
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_all_reduce(AtenTensorHandle x,
                                                                      AtenTensorHandle group,
                                                                      AtenTensorHandle* result) {
  return trtspec::run_shim(result,
                           [&] { return all_reduce(trtspec::tensor(x), trtspec::tensor(group)); });
}

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_all_gather(AtenTensorHandle x,
                                                                      AtenTensorHandle group,
                                                                      std::int64_t width,
                                                                      AtenTensorHandle* result) {
  return trtspec::run_shim(
      result, [&] { return all_gather(trtspec::tensor(x), trtspec::tensor(group), width); });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def("all_reduce(Tensor x, Tensor group) -> Tensor");
  m.def("all_gather(Tensor x, Tensor group, int width) -> Tensor");
  m.class_<RankGroupHolder>("RankGroup")
      .def(torch::init<int64_t, int64_t, int64_t, double>())
      .def_static("memory_bytes", &RankGroupHolder::memory_bytes)
      .def("address", &RankGroupHolder::address)
      .def("end", &RankGroupHolder::end);
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("all_reduce", &all_reduce);
  m.impl("all_gather", &all_gather);
}
