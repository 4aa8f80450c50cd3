// Memory for what a call makes on its way, from the beginning of a cache line on.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace trtspec {

constexpr std::align_val_t kScratchAlignment{64};

// Blocks of memory that calls of a thread gave back, for its next ones: the allocator would tidy up
// at each large block that is freed, which takes longer than many a call.
class ScratchBlocks {
 public:
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  ScratchBlocks() = default;
  ~ScratchBlocks() {
    for (const Block& block : kept_) ::operator delete(block.data, kScratchAlignment);
  }
  ScratchBlocks(const ScratchBlocks&) = delete;
  ScratchBlocks& operator=(const ScratchBlocks&) = delete;

  // The smallest that is large enough, or a new one; throws std::bad_alloc.
  Block take(std::size_t bytes) {
    Block* best = nullptr;
    for (Block& block : kept_) {
      if (block.bytes < bytes || block.data == nullptr) continue;
      if (best == nullptr || block.bytes < best->bytes) best = &block;
    }
    if (best != nullptr) return std::exchange(*best, Block{});
    return {::operator new(bytes, kScratchAlignment), bytes};
  }

  // Kept in the place of the smallest, unless it is smaller, or too large to be held for long.
  void give(Block block) {
    Block* least = &kept_[0];
    for (Block& each : kept_) {
      if (each.bytes < least->bytes) least = &each;
    }
    if (block.bytes <= kMostBytes && block.bytes > least->bytes) std::swap(block, *least);
    ::operator delete(block.data, kScratchAlignment);
  }

  static ScratchBlocks& of_thread() {
    static thread_local ScratchBlocks blocks;
    return blocks;
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::array<Block, 8> kept_{};
};

struct FreeScratch {
  std::size_t bytes;
  void operator()(void* data) const { ScratchBlocks::of_thread().give({data, bytes}); }
};

template <class Value>
using Scratch = std::unique_ptr<Value[], FreeScratch>;

// Uninitialised; throws std::bad_alloc.
template <class Value>
Scratch<Value> make_scratch(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Value);
  const ScratchBlocks::Block block = ScratchBlocks::of_thread().take(bytes);
  return Scratch<Value>(static_cast<Value*>(block.data), FreeScratch{block.bytes});
}

}  // namespace trtspec
