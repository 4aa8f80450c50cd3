// Ops as C functions, which compiled engines call without torch's dispatcher: what would unpack and
// look up their arguments takes microseconds a call, on the one thread that runs meanwhile. Their
// names and parameters are those that AOTInductor derives from an op's schema; see
// trtspec/backends/aoti/compile.py.
#pragma once

#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <optional>
#include <tuple>
#include <utility>

namespace trtspec {

inline at::Tensor& tensor(AtenTensorHandle handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

inline std::optional<at::Tensor> optional_tensor(const AtenTensorHandle* handle) {
  return handle == nullptr ? std::nullopt : std::make_optional(tensor(*handle));
}

inline std::optional<at::ScalarType> optional_dtype(const std::int32_t* dtype) {
  return dtype == nullptr ? std::nullopt : std::make_optional(static_cast<at::ScalarType>(*dtype));
}

// The result of `call()` into *result, or the code of its failure.
template <class Call>
AOTITorchError run_shim(AtenTensorHandle* result, const Call& call) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { *result = torch::aot_inductor::new_tensor_handle(call()); })
}

// The same for several results.
template <class... Tensors, class... Handles>
void store(const std::tuple<Tensors...>& tensors, Handles*... results) {
  std::apply(
      [&](const Tensors&... each) {
        ((*results = torch::aot_inductor::new_tensor_handle(at::Tensor(each))), ...);
      },
      tensors);
}

template <class Call, class... Handles>
AOTITorchError run_shims(const Call& call, Handles*... results) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ store(call(), results...); })
}

}  // namespace trtspec
