// The linear op with weights in codes and inputs of 8 bits, by the processor's products of tiles of
// bytes (AMX-INT8). Their sums of whole numbers are those of vectors, and so are all bits.
//
// Sixteen rows of up to 64 inputs meet a panel's 16 outputs: the bytes of a weight tile lie as
// panels of 8 bits keep them, four inputs of each output behind each other.
#include "linear_codes.hpp"
#include "tiles.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr int kSumTiles = int(kCodeChunk / kTileRows);  // 0 to 5; 6: inputs, 7: weights
constexpr std::int64_t kTileBytes = 64;

// The tiles of a thread for a number of rows and of inputs; given back at the end.
class CodeTiles {
 public:
  CodeTiles(std::int64_t rows, std::int64_t inputs) : count_(int((rows + 15) / kTileRows)) {
    alignas(64) TileConfig config;
    for (int tile = 0; tile < kSumTiles; ++tile) shape(config, tile, kTileRows, kTileBytes);
    shape(config, 6, kTileRows, inputs);
    shape(config, 7, inputs / 4, kTileBytes);
    publish(&config);
    _tile_loadconfig(&config);
  }
  ~CodeTiles() { _tile_release(); }
  CodeTiles(const CodeTiles&) = delete;
  CodeTiles& operator=(const CodeTiles&) = delete;

  TRTSPEC_INLINE void clear() const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }

  // Sums of rows, which lie `stride` bytes apart, plus their inputs times weights.
  TRTSPEC_INLINE void multiply(const std::int8_t* x, std::int64_t stride,
                               const std::uint8_t* weights) const {
    publish(weights);
    _tile_loadd(7, weights, kTileBytes);
    const std::int64_t next = kTileRows * stride;
    _tile_loadd(6, x, stride);
    _tile_dpbsud(0, 6, 7);
    if (count_ == 1) return;
    _tile_loadd(6, x + next, stride);
    _tile_dpbsud(1, 6, 7);
    if (count_ == 2) return;
    _tile_loadd(6, x + 2 * next, stride);
    _tile_dpbsud(2, 6, 7);
    if (count_ == 3) return;
    _tile_loadd(6, x + 3 * next, stride);
    _tile_dpbsud(3, 6, 7);
    if (count_ == 4) return;
    _tile_loadd(6, x + 4 * next, stride);
    _tile_dpbsud(4, 6, 7);
    if (count_ == 5) return;
    _tile_loadd(6, x + 5 * next, stride);
    _tile_dpbsud(5, 6, 7);
  }

  // [kCodeChunk][16].
  TRTSPEC_INLINE void store(std::int32_t* sums) const {
    constexpr std::int64_t kNext = kTileRows * kCodeOutputs;
    _tile_stored(0, sums, kTileBytes);
    _tile_stored(1, sums + kNext, kTileBytes);
    _tile_stored(2, sums + 2 * kNext, kTileBytes);
    _tile_stored(3, sums + 3 * kNext, kTileBytes);
    _tile_stored(4, sums + 4 * kNext, kTileBytes);
    _tile_stored(5, sums + 5 * kNext, kTileBytes);
    publish(sums);
  }

 private:
  static void shape(TileConfig& config, int tile, std::int64_t rows, std::int64_t bytes) {
    config.rows[tile] = std::uint8_t(rows);
    config.row_bytes[tile] = std::uint16_t(bytes);
  }

  const int count_;  // of sums in use
};

// Bytes of the inputs from `first` on, 16 outputs of four inputs a line; none behind the last.
template <class Codes>
TRTSPEC_INLINE void fill_tile(const Codes& kind, const std::uint8_t* w, std::int64_t count,
                              std::int64_t inputs, std::uint8_t* tile) {
  constexpr std::int64_t kBlock = 32 / Codes::kBits;
  std::uint8_t* to = tile;
  for (std::int64_t k = 0; k < inputs; k += kBlock, w += kCodeLine) {
    __builtin_prefetch(w + kCodesAhead, 0, 2);
    const VU codes = k < count ? *reinterpret_cast<const VUc*>(w) : VU{};
    for (int i = 0; i < kBlock / 4; ++i, to += kTileBytes) {
      *reinterpret_cast<VUc*>(to) = kind.bytes(codes, i);
    }
  }
}

// Sums [rows][16] of a group become floats, scaled and added to those of the groups before.
void add_group(const LinearQuantisedParams& params, const CodeInputs& inputs, std::int64_t index,
               std::int64_t of_row, std::int64_t rows, const std::int32_t* parts, float* sums) {
  const VF scale = load_scales(params, params.scales, index);
  VF offset{};
  if (params.zeros != nullptr) offset = -load(params.zeros + index) * scale;
  if (params.offsets != nullptr) offset = load_scales(params, params.offsets, index);
  const bool has_offset = params.zeros != nullptr || params.offsets != nullptr;
  for (std::int64_t r = 0; r < rows; ++r, of_row += inputs.groups) {
    const VI part = (VI) * reinterpret_cast<const VUc*>(parts + r * kCodeOutputs);
    const VF whole = __builtin_convertvector(part + inputs.centres[of_row], VF);
    VF sum = fma(whole, scale * inputs.scales[of_row], load(sums + r * kCodeOutputs));
    if (has_offset) sum = fma(offset, splat(inputs.sums[of_row]), sum);
    store(sums + r * kCodeOutputs, sum);
  }
}

template <class Codes>
__attribute__((noinline)) void multiply_tile_panel(const Codes& kind,
                                                   const LinearQuantisedParams& params,
                                                   const CodeInputs& inputs, std::int64_t panel,
                                                   std::int64_t first, std::int64_t rows,
                                                   float* sums) {
  constexpr std::int64_t kBlock = 32 / Codes::kBits;
  const std::int64_t depth = params.linear.in_features;
  const std::int64_t bytes = (depth + kBlock - 1) / kBlock * kCodeLine;
  const std::int64_t group_size = params.group_size > 0 ? params.group_size : depth;
  const std::int64_t weight_groups = (depth + group_size - 1) / group_size;
  const auto* w = static_cast<const std::uint8_t*>(params.linear.packed) + panel * bytes;
  const auto* x = static_cast<const std::int8_t*>(inputs.x) + first * inputs.stride;
  const std::int64_t widest = inputs.size < kTileBytes ? inputs.size : kTileBytes;
  alignas(64) std::uint8_t tile[kTileRows * kTileBytes];
  alignas(64) std::int32_t parts[kCodeChunk * kCodeOutputs];
  const CodeTiles tiles(rows, widest);
  for (std::int64_t i = 0; i < rows * kCodeOutputs; i += kLanes) store(sums + i, VF{});
  for (std::int64_t g = 0; g < inputs.groups; ++g) {
    const std::int64_t begin = g * inputs.size;
    const std::int64_t end = begin + inputs.size < depth ? begin + inputs.size : depth;
    tiles.clear();
    for (std::int64_t k = begin; k < end; k += widest) {
      fill_tile(kind, w + k / kBlock * kCodeLine, end - k, widest, tile);
      tiles.multiply(x + k, inputs.stride, tile);
    }
    tiles.store(parts);
    const std::int64_t group = params.group_size > 0 ? begin / group_size : 0;
    add_group(params, inputs, (panel * weight_groups + group) * kCodeOutputs,
              first * inputs.groups + g, rows, parts, sums);
  }
}

}  // namespace

void linear_codes_amx(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_code_panels(params, inputs,
                  [&](std::int64_t panel, std::int64_t first, std::int64_t end, float* sums) {
                    with_codes(params, [&](const auto& kind) {
                      multiply_tile_panel(kind, params, inputs, panel, first, end - first, sums);
                    });
                  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
