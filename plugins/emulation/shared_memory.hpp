// SharedMemory: what the threads of the running block share, as small as the launch asked for.
//
// It holds poison before each block, and beyond each piece of it lies more, which no block may
// write; the address sanitizer stops reads there as well. Poison is NaN and -1, or huge, in turn, so
// that neither a maximum nor a sum hides it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace emulation {

// Bytes that a kernel may have without asking, which nvcc makes the limit of its variables.
inline constexpr std::size_t kUnaskedBytes = 48 * 1024;
// Bytes of a block on the smallest of the GPUs that the kernels are built for, capability 12.0.
inline constexpr std::size_t kDeviceBytes = 99 * 1024;

class SharedMemory {
 public:
  SharedMemory();

  // For the blocks of a launch: `dynamic_bytes` as it asked for, of the `allowed` bytes that it may
  // have with its variables.
  void open(std::size_t dynamic_bytes, std::size_t allowed);
  void poison(unsigned char value);
  // The dynamic memory, aligned to 128 bytes.
  unsigned char* dynamic() { return begin_; }
  // The memory of the variable that `tag` stands for.
  void* variable(const void* tag, std::size_t bytes, std::size_t alignment);
  // Ends the program if the block wrote beyond a piece of memory.
  void check() const;

 private:
  struct Piece {
    const void* tag;  // null: the dynamic memory
    std::size_t begin, bytes;
  };

  const Piece& add(const void* tag, std::size_t bytes, std::size_t alignment);

  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* begin_;
  std::vector<Piece> pieces_;
  std::size_t allowed_ = 0;
  std::size_t end_ = 0;  // of the last piece and the poison beyond it
  unsigned char poison_ = 0;
};

}  // namespace emulation
