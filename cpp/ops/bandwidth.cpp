#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <trtspec/bandwidth.hpp>
#include <trtspec/error.hpp>
#include <vector>

#include "read_kernel.hpp"

namespace trtspec {

namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;
constexpr std::int64_t kPageBytes = std::int64_t{2} << 20;
constexpr std::int64_t kChunk = 1 << 12;  // words that a thread reads at a time
constexpr int kPasses = 5;

struct Free {
  void operator()(std::uint64_t* data) const { std::free(data); }
};
using Piece = std::unique_ptr<std::uint64_t[], Free>;

// A piece of so many chunks, in large pages where there are any, and written by the threads that
// read it, so that each finds its part nearby.
Piece make_piece(std::int64_t chunks) {
  const std::int64_t bytes = chunks * kChunk * std::int64_t{sizeof(std::uint64_t)};
  const std::int64_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const data = static_cast<std::uint64_t*>(
      std::aligned_alloc(static_cast<std::size_t>(kPageBytes), static_cast<std::size_t>(whole)));
  if (data == nullptr) throw std::bad_alloc();
  ::madvise(data, static_cast<std::size_t>(whole), MADV_HUGEPAGE);  // or small pages: slower
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    std::fill_n(data + chunk * kChunk, kChunk, static_cast<std::uint64_t>(chunk));
  }
  return Piece(data);
}

std::uint64_t sum_of(const std::uint64_t* data, std::int64_t chunks) {
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    sum += TRTSPEC_DISPATCH(read_kernel, data + chunk * kChunk, kChunk);
  }
  return sum;
}

}  // namespace

double measure_read_bandwidth(std::int64_t bytes) {
  constexpr std::int64_t kChunkBytes = kChunk * sizeof(std::uint64_t);
  if (bytes < kMinBandwidthBytes) {
    throw Error("the read bandwidth is measured over at least 1 MiB");
  }
  const std::int64_t chunks = std::min(bytes, kPieceBytes) / kChunkBytes;
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < bytes / (chunks * kChunkBytes); ++i) {
    pieces.push_back(make_piece(chunks));
  }
  std::vector<double> times;
  volatile std::uint64_t kept = 0;  // or nothing would be read
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const Piece& piece : pieces) {
      const auto began = std::chrono::steady_clock::now();
      kept = kept + sum_of(piece.get(), chunks);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
      times.push_back(taken.count());
    }
  }
  const auto counts = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 10);
  std::nth_element(times.begin(), counts, times.end());
  return static_cast<double>(chunks * kChunkBytes) / *counts;
}

}  // namespace trtspec
