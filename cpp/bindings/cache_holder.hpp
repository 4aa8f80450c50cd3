// A KVCache as torch passes it from one native call to the next.
#pragma once
#include <torch/custom_class.h>
#include <trtspec/error.hpp>
#include <trtspec/kv_cache.hpp>
#include <trtspec/runtime/host_tensor.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

using SharedCache = std::shared_ptr<trtspec::KVCache>;

// What Python gives to other calls in place of a cache; see drafts_holder.hpp.
inline const SharedCache& cache_at(int64_t address) {
  return *reinterpret_cast<const SharedCache*>(address);
}

// What `call` returns; what does not fit as torch raises a ValueError.
template <class Call>
auto as_value_error(const Call& call) {
  try {
    return call();
  } catch (const trtspec::Error& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

// int32 [n], a copy.
inline at::Tensor table_of(std::span<const int32_t> blocks) {
  at::Tensor table = trtspec::host_tensor({int64_t(blocks.size())}, at::kInt);
  std::copy(blocks.begin(), blocks.end(), table.mutable_data_ptr<int32_t>());
  return table;
}
