// A small product by the processor's tiles (AMX), the core of linear_amx.cpp and attention_amx.cpp.
// Only for sources compiled for it.
//
// A tile has 16 rows of 64 bytes. One of inputs holds 32 of each of up to 16 rows of x; one of
// weights 16 pairs of inputs for 16 outputs; their product adds to the sums of these rows and
// outputs, all pairs in their order, for every row alike, however many there are. Two tiles of
// inputs and two of weights are multiplied each by each, so that one is loaded for two products.
#pragma once
#include <immintrin.h>
#include <trtspec/linear.hpp>

#include "linear_kernel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileInputs = amx::kInputBlock;
constexpr std::int64_t kTileOutputs = 16;
constexpr std::int64_t kTileBlock = 2 * kTileRows;             // that share a loading of weights
constexpr std::int64_t kInputsWeights = kTileInputs * kPanel;  // of a panel, in four tiles
constexpr std::int64_t kTileSteps = 8;                         // of its loop, for 32 inputs

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

// The tiles of a thread: 0 and 1 sums of the first rows, 2 and 3 of the others, 4 and 5 inputs of
// both, 6 and 7 weights. All are given back at the end, as other libraries use them too.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() {
    if (rows_ > 0) _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // For a block of 1 to kTileBlock rows.
  TRTSPEC_INLINE void shape_for(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const std::int64_t first = rows < kTileRows ? rows : kTileRows;
    const std::int64_t other = rows > first ? rows - first : 1;  // none: not in use
    const std::int64_t rows_of[8] = {first, first, other,     other,
                                     first, other, kTileRows, kTileRows};
    alignas(64) TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<std::uint8_t>(rows_of[tile]);
    }
    publish(&config);
    _tile_loadconfig(&config);
  }

 private:
  std::int64_t rows_ = 0;
};

// Where inputs lie: those of a row in blocks of kTileInputs; strides in elements.
struct TileInputs {
  const bf16* x;
  std::int64_t row_stride;
  std::int64_t block_stride;

  TRTSPEC_INLINE TileInputs from(std::int64_t row, std::int64_t input) const {
    return {x + row * row_stride + input / kTileInputs * block_stride, row_stride, block_stride};
  }
};

// The inputs of a linear op, which the prologue has left in blocks.
inline TileInputs inputs_of(const LinearParams& params) {
  return {static_cast<const bf16*>(params.x), kTileInputs, kTileInputs * params.rows};
}

// Blocks of rows that share a loading of weights.
constexpr std::int64_t tile_blocks(std::int64_t rows) {
  return (rows + kTileBlock - 1) / kTileBlock;
}

// body(first, count) for every block of rows, with the tiles shaped for it.
template <class Body>
TRTSPEC_INLINE void for_tile_blocks(std::int64_t rows, Tiles& tiles, const Body& body) {
  for (std::int64_t first = 0; first < rows; first += kTileBlock) {
    const std::int64_t count = rows - first < kTileBlock ? rows - first : kTileBlock;
    tiles.shape_for(count);
    body(first, count);
  }
}

// multiply_tiles for 32 outputs, of one or two tiles of rows.
template <bool Two, class Step>
TRTSPEC_INLINE void multiply_half(std::int64_t depth, const TileInputs& inputs, const bf16* weights,
                                  float* sums, bool fresh, const Step& step) {
  constexpr int kWeightsStride = 2 * kPanel * sizeof(bf16), kSumsStride = kPanel * sizeof(float);
  const std::int64_t stride = inputs.row_stride * std::int64_t{sizeof(bf16)};
  float* const others = sums + kTileRows * kPanel;
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    publish(sums);
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kTileOutputs, kSumsStride);
    if (Two) {
      _tile_loadd(2, others, kSumsStride);
      _tile_loadd(3, others + kTileOutputs, kSumsStride);
    }
  }
  publish(weights);
  const bf16* x = inputs.x;
  for (std::int64_t k = 0; k < depth; k += kTileInputs) {
    _tile_loadd(6, weights, kWeightsStride);
    step();
    _tile_loadd(4, x, stride);
    _tile_dpbf16ps(0, 4, 6);
    step();
    _tile_loadd(7, weights + 2 * kTileOutputs, kWeightsStride);
    _tile_dpbf16ps(1, 4, 7);
    step();
    if (Two) {
      _tile_loadd(5, x + kTileRows * inputs.row_stride, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    step();
    x += inputs.block_stride;
    weights += kInputsWeights;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileOutputs, kSumsStride);
  if (Two) {
    _tile_stored(2, others, kSumsStride);
    _tile_stored(3, others + kTileOutputs, kSumsStride);
  }
}

// sums [rows][64] = inputs times weights of a panel, in pairs, plus what is there unless `fresh`;
// depth in multiples of 32; the tiles are shaped for these rows. step(): kTileSteps times for 32
// inputs, evenly.
template <class Step>
TRTSPEC_INLINE void multiply_tiles(std::int64_t rows, std::int64_t depth, const TileInputs& inputs,
                                   const bf16* weights, float* sums, bool fresh, const Step& step) {
  for (std::int64_t c = 0; c < kPanel; c += 2 * kTileOutputs) {
    if (rows > kTileRows) {
      multiply_half<true>(depth, inputs, weights + 2 * c, sums + c, fresh, step);
    } else {
      multiply_half<false>(depth, inputs, weights + 2 * c, sums + c, fresh, step);
    }
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
