#include "shared_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "failure.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace emulation {
namespace {

constexpr std::size_t kAlignment = 128;
constexpr std::size_t kBeyond = 128;              // bytes of poison behind each piece
constexpr std::size_t kBytes = 2 * kDeviceBytes;  // pieces and what lies between them

}  // namespace

SharedMemory::SharedMemory() : memory_(new unsigned char[kBytes + kAlignment]) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  begin_ = memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
}

void SharedMemory::open(std::size_t dynamic_bytes, std::size_t allowed) {
  ASAN_POISON_MEMORY_REGION(begin_, kBytes);
  pieces_.clear();
  end_ = 0;
  allowed_ = allowed;
  add(nullptr, dynamic_bytes, kAlignment);
}

const SharedMemory::Piece& SharedMemory::add(const void* tag, std::size_t bytes,
                                             std::size_t alignment) {
  // The sanitizer keeps account of 8 bytes at a time.
  const std::size_t step = std::max<std::size_t>(alignment, 8);
  const Piece piece{tag, (end_ + step - 1) / step * step, bytes};
  const std::size_t end = piece.begin + bytes + kBeyond;
  if (end > kBytes) fail("too many variables in shared memory");
  ASAN_UNPOISON_MEMORY_REGION(begin_ + end_, end - end_);
  std::memset(begin_ + end_, poison_, end - end_);
  ASAN_POISON_MEMORY_REGION(begin_ + end_, end - end_);
  ASAN_UNPOISON_MEMORY_REGION(begin_ + piece.begin, bytes);
  end_ = end;
  pieces_.push_back(piece);
  return pieces_.back();
}

void SharedMemory::poison(unsigned char value) {
  poison_ = value;
  ASAN_UNPOISON_MEMORY_REGION(begin_, end_);
  std::memset(begin_, value, end_);
  ASAN_POISON_MEMORY_REGION(begin_, end_);
  for (const Piece& piece : pieces_) {
    ASAN_UNPOISON_MEMORY_REGION(begin_ + piece.begin, piece.bytes);
  }
}

void* SharedMemory::variable(const void* tag, std::size_t bytes, std::size_t alignment) {
  for (const Piece& piece : pieces_) {
    if (piece.tag == tag) return begin_ + piece.begin;
  }
  std::size_t total = bytes;  // of variables
  for (const Piece& piece : pieces_) total += piece.tag == nullptr ? 0 : piece.bytes;
  if (total > kUnaskedBytes) {
    fail("a kernel's variables in shared memory take %zu bytes, nvcc takes %zu", total,
         kUnaskedBytes);
  }
  if (total + pieces_.front().bytes > allowed_) {
    fail(
        "a block takes %zu bytes of shared memory, %zu of them its kernel's variables; the launch "
        "may have %zu",
        total + pieces_.front().bytes, total, allowed_);
  }
  return begin_ + add(tag, bytes, alignment).begin;
}

void SharedMemory::check() const {
  std::size_t end = 0;
  const auto check_until = [&](std::size_t begin) {
    ASAN_UNPOISON_MEMORY_REGION(begin_ + end, begin - end);
    const bool kept = std::all_of(begin_ + end, begin_ + begin,
                                  [this](unsigned char byte) { return byte == poison_; });
    ASAN_POISON_MEMORY_REGION(begin_ + end, begin - end);
    if (!kept) fail("a block wrote beyond the shared memory that it has");
  };
  for (const Piece& piece : pieces_) {
    check_until(piece.begin);
    end = piece.begin + piece.bytes;
  }
  check_until(end_);
}

}  // namespace emulation
