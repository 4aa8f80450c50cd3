// Memory for what a call makes on its way, from the beginning of a cache line on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace trtspec {

constexpr std::align_val_t kScratchAlignment{64};

struct FreeScratch {
  void operator()(void* data) const { ::operator delete(data, kScratchAlignment); }
};

template <class Value>
using Scratch = std::unique_ptr<Value[], FreeScratch>;

// Uninitialised; throws std::bad_alloc.
template <class Value>
Scratch<Value> make_scratch(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Value);
  return Scratch<Value>(static_cast<Value*>(::operator new(bytes, kScratchAlignment)));
}

}  // namespace trtspec
