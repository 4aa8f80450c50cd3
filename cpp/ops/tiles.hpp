// A small product by the processor's tiles (AMX), the core of linear_amx.cpp and
// linear_int8_amx.cpp. Only for sources compiled for it.
//
// A tile has 16 rows of 64 bytes. One of inputs holds 32 of each of up to 16 rows of x; one of
// weights 16 pairs of inputs for 16 outputs; their product adds to the sums of these rows and
// outputs, all pairs in their order, for every row alike, however many there are.
#pragma once
#include <immintrin.h>
#include <trtspec/linear.hpp>

#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileInputs = 32;
constexpr std::int64_t kTileColumns = 32;                      // weights in a row of a tile
constexpr std::int64_t kInputsWeights = kTileInputs * kPanel;  // of a panel, in four tiles
constexpr std::int64_t kTileSteps = 4;                         // of its loop, for 32 inputs
constexpr std::int64_t kAheadBytes = 8192;                     // between a prefetch and its use

// What stands in memory at `data` is there before the next tile is loaded, which compilers do not
// know to read it.
TRTSPEC_INLINE void publish(const void* data) { __asm__ volatile("" : : "r"(data) : "memory"); }

// What LDTILECFG reads.
struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// The tiles of a thread: 0-3 sums, 4 inputs, 5-7 weights; the first five have as many rows as are
// multiplied. All are given back at the end, as other libraries use them too.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  TRTSPEC_INLINE void shape_for(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    alignas(64) TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<std::uint8_t>(tile <= 4 ? rows : kTileRows);
    }
    publish(&config);
    _tile_loadconfig(&config);
  }

 private:
  std::int64_t rows_ = 0;
};

// The weights of a panel to bring nearer, kAheadBytes before they are read; behind its `size` bytes
// those at `later`.
class LinesAhead {
 public:
  LinesAhead(const bf16* first, std::int64_t size, const bf16* later)
      : next_(reinterpret_cast<const char*>(first) + kAheadBytes),
        later_(reinterpret_cast<const char*>(later)),
        left_(size - kAheadBytes) {}

  TRTSPEC_INLINE void fetch(std::int64_t lines) {
    for (std::int64_t line = 0; line < lines; ++line, next_ += 64, left_ -= 64) {
      __builtin_prefetch(left_ > 0 ? next_ : later_ - left_, 0, 2);
    }
  }

 private:
  const char* next_;
  const char* later_;
  std::int64_t left_;
};

// Blocks of rows for a tile each.
constexpr std::int64_t tile_blocks(std::int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

// body(first, count) for every block of rows, with the tiles shaped for it.
template <class Body>
TRTSPEC_INLINE void for_tile_blocks(std::int64_t rows, Tiles& tiles, const Body& body) {
  for (std::int64_t first = 0; first < rows; first += kTileRows) {
    const std::int64_t count = rows - first < kTileRows ? rows - first : kTileRows;
    tiles.shape_for(count);
    body(first, count);
  }
}

// sums [rows][64] = x [rows][depth] times weights of a panel, in pairs, plus what is there unless
// `fresh`; x_stride in elements, depth in multiples of 32, rows as the tiles are shaped for.
// step(): kTileSteps times for 32 inputs, evenly.
template <class Step>
TRTSPEC_INLINE void multiply_tiles(std::int64_t depth, const bf16* x, std::int64_t x_stride,
                                   const bf16* weights, float* sums, bool fresh,
                                   const Step& step) {
  constexpr int kWeightsStride = 2 * kPanel * sizeof(bf16), kSumsStride = kPanel * sizeof(float);
  const std::int64_t stride = x_stride * std::int64_t{sizeof(bf16)};
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    publish(sums);
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + 16, kSumsStride);
    _tile_loadd(2, sums + 32, kSumsStride);
    _tile_loadd(3, sums + 48, kSumsStride);
  }
  publish(weights);
  for (std::int64_t k = 0; k < depth; k += kTileInputs, weights += kInputsWeights) {
    _tile_loadd(4, x + k, stride);
    step();
    _tile_loadd(5, weights, kWeightsStride);
    _tile_dpbf16ps(0, 4, 5);
    step();
    _tile_loadd(6, weights + kTileColumns, kWeightsStride);
    _tile_dpbf16ps(1, 4, 6);
    step();
    _tile_loadd(7, weights + 2 * kTileColumns, kWeightsStride);
    _tile_dpbf16ps(2, 4, 7);
    step();
    _tile_loadd(5, weights + 3 * kTileColumns, kWeightsStride);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + 16, kSumsStride);
  _tile_stored(2, sums + 32, kSumsStride);
  _tile_stored(3, sums + 48, kSumsStride);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
