// The product by weights in codes, compiled once an instruction set. Only for kernel sources.
#pragma once
#include <type_traits>

#include "code_bytes.hpp"
#include "linear_panels.hpp"
#include "parallel.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr int kCodeLine = 64;  // bytes of a block of inputs, of all outputs of a panel
constexpr std::int64_t kCodeChunk =
    96;  // rows of a task, at most: their codes stay in the second cache
constexpr std::int64_t kCodesAhead = 8192;  // bytes between what is multiplied and prefetched
#if defined(__AVX512F__)
constexpr int kCodeRows = code_rows(Isa::avx512);
#elif defined(__AVX2__)
constexpr int kCodeRows = code_rows(Isa::avx2);
#else
constexpr int kCodeRows = code_rows(Isa::generic);
#endif

TRTSPEC_INLINE VF load_scales(const LinearQuantisedParams& params, const void* from,
                              std::int64_t index) {
  if (params.scale_dtype == DType::f16) return load(static_cast<const f16*>(from) + index);
  if (params.scale_dtype == DType::bf16) return load(static_cast<const bf16*>(from) + index);
  return load(static_cast<const float*>(from) + index);
}

// Where a pass over the lines of a panel prefetches: it moves by `stride` at each of them.
struct LinesAhead {
  const char* next;
  std::int64_t stride;

  // Bytes of few rows are multiplied faster than memory gives them: then processors prefetch best
  // by themselves. Codes of 4 bits take longer, and few rows leave room for them in the first cache.
  template <int Bits, int Rows>
  TRTSPEC_INLINE void step() {
    if constexpr (Rows > 2) __builtin_prefetch(next, 0, 2);
    if constexpr (Rows <= 2 && Bits == 4) __builtin_prefetch(next, 0, 3);
    next += stride;
  }
};

// sums [Rows][16] of a panel, for a block of so many rows that begins with `first`.
template <class Codes, template <class> class Inputs, int Rows>
__attribute__((noinline)) void multiply_codes(const LinearQuantisedParams& params,
                                              const CodeInputs& inputs, std::int64_t panel,
                                              std::int64_t first, LinesAhead ahead, float* sums) {
  using Kind = Inputs<Codes>;
  constexpr std::int64_t kBlock = 32 / Codes::kBits;
  const Codes kind(params);
  const std::int64_t depth = params.linear.in_features;
  const std::int64_t blocks = (depth + kBlock - 1) / kBlock;
  const std::int64_t group_size = params.group_size > 0 ? params.group_size : depth;
  const std::int64_t weight_groups = (depth + group_size - 1) / group_size;
  // All that moves on from group to group.
  const auto* w =
      static_cast<const std::uint8_t*>(params.linear.packed) + panel * blocks * kCodeLine;
  const auto* x = static_cast<const typename Kind::Input*>(inputs.x) + first * inputs.stride;
  std::int64_t of_rows = first * inputs.groups;
  std::int64_t index = panel * weight_groups * kCodeOutputs;
  std::int64_t left = group_size;  // inputs of a group of weights
  VF sum[Rows][kCodeVectors] = {};
  for (std::int64_t groups = inputs.groups; groups > 0; --groups, of_rows += Rows) {
    const std::int64_t in_group = inputs.size / kBlock;
    const std::int64_t count = groups > 1 ? in_group : blocks - (inputs.groups - 1) * in_group;
    typename Kind::Part part[Rows][kCodeVectors];
    typename Kind::Sum total[Rows][kCodeVectors];
    const auto each = [&](const auto& run) TRTSPEC_INLINE_LAMBDA {
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kCodeVectors; ++v) run(r, v);
      }
    };
    const auto add_lines = [&](std::int64_t lines) TRTSPEC_INLINE_LAMBDA {
      for (const std::uint8_t* const end = w + lines * kCodeLine; w != end; w += kCodeLine) {
        ahead.template step<Codes::kBits, Rows>();
        Kind::template add<Rows>(kind, reinterpret_cast<const VUc*>(w), x, part);
        x += kBlock * Rows;
      }
    };
    constexpr std::int64_t kMost = Kind::kMostLines;
    std::int64_t lines = kMost > 0 && count > kMost ? kMost : count;
    each([&](int r, int v)
             TRTSPEC_INLINE_LAMBDA { part[r][v] = Kind::begin(inputs, of_rows + r); });
    add_lines(lines);
    each([&](int r, int v)
             TRTSPEC_INLINE_LAMBDA { total[r][v] = Kind::total(part[r][v], inputs, of_rows + r); });
    if constexpr (kMost > 0) {
      for (std::int64_t rest = count - lines; rest > 0; rest -= lines) {
        lines = rest > kMost ? kMost : rest;
        each([&](int r, int v) TRTSPEC_INLINE_LAMBDA { part[r][v] = typename Kind::Part{}; });
        add_lines(lines);
        each([&](int r, int v)
                 TRTSPEC_INLINE_LAMBDA { total[r][v] = Kind::plus(total[r][v], part[r][v]); });
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kCodeVectors; ++v) {
      const std::int64_t of_outputs = index + v * kLanes;
      const VF scale = load_scales(params, params.scales, of_outputs);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const VF factor = Kind::scaled(inputs, of_rows + r, scale);
        sum[r][v] = fma(Kind::finish(total[r][v]), factor, sum[r][v]);
      }
      if (params.zeros != nullptr || params.offsets != nullptr) {
        const VF offset = params.zeros != nullptr ? -load(params.zeros + of_outputs) * scale
                                                  : load_scales(params, params.offsets, of_outputs);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          sum[r][v] = fma(offset, splat(inputs.sums[of_rows + r]), sum[r][v]);
        }
      }
    }
    left -= inputs.size;
    if (left <= 0) {
      index += kCodeOutputs;
      left = group_size;
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < kCodeVectors; ++v) store(sums + r * kCodeOutputs + v * kLanes, sum[r][v]);
  }
}

template <class Codes, template <class> class Inputs, int Rows = 1>
TRTSPEC_INLINE void multiply_rows(std::int64_t rows, const LinearQuantisedParams& params,
                                  const CodeInputs& inputs, std::int64_t panel, std::int64_t first,
                                  const LinesAhead& ahead, float* sums) {
  if (rows == Rows) {
    return multiply_codes<Codes, Inputs, Rows>(params, inputs, panel, first, ahead, sums);
  }
  if constexpr (Rows < kCodeRows) {
    multiply_rows<Codes, Inputs, Rows + 1>(rows, params, inputs, panel, first, ahead, sums);
  }
}

// sums [rows][16] of a panel, for the rows of some blocks.
template <class Codes, template <class> class Inputs>
__attribute__((noinline)) void multiply_panel(const LinearQuantisedParams& params,
                                              const CodeInputs& inputs, std::int64_t panel,
                                              std::int64_t first, std::int64_t end, float* sums) {
  constexpr std::int64_t kBlock = 32 / Codes::kBits;
  const std::int64_t bytes = (params.linear.in_features + kBlock - 1) / kBlock * kCodeLine;
  const char* w = static_cast<const char*>(params.linear.packed) + panel * bytes;
  const std::int64_t blocks = end - first;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t from = inputs.first_row(params.linear.rows, first + b);
    const std::int64_t rows = inputs.first_row(params.linear.rows, first + b + 1) - from;
    // Each of several passes over a panel fetches its share of the next one.
    LinesAhead ahead{w + kCodesAhead, kCodeLine};
    if (blocks > 1) ahead = {w + bytes + bytes * b / blocks, kCodeLine / blocks};
    multiply_rows<Codes, Inputs>(rows, params, inputs, panel, from, ahead, sums);
    sums += rows * kCodeOutputs;
  }
}

// multiply(panel, first, end, sums) for every panel of 16 outputs and every few blocks of rows:
// sums [rows][16] of these are then finished and stored.
template <class Value, class Out, class Multiply>
void run_code_panels(const LinearQuantisedParams& params, const CodeInputs& inputs,
                     const Multiply& multiply) {
  const LinearParams& linear = params.linear;
  const std::int64_t panels = (linear.out_features + kCodeOutputs - 1) / kCodeOutputs;
  const std::int64_t most_rows = (linear.rows + inputs.blocks - 1) / inputs.blocks;
  const std::int64_t most_blocks = kCodeChunk / most_rows;
  const std::int64_t chunks = (inputs.blocks + most_blocks - 1) / most_blocks;
  const double per_row = double(linear.in_features) * double(linear.out_features);
  const int threads = threads_for(per_row * double(linear.rows < 4 ? 4 : linear.rows), kGrain);
  if (threads > 1) {
    read_next(linear.packed, panels * linear.in_features * kCodeOutputs * params.bits / 8);
  }
  parallel_for(panels * chunks, threads, [&](std::int64_t task, int) {
    const std::int64_t panel = task % panels, chunk = task / panels;
    const std::int64_t first = inputs.blocks * chunk / chunks;
    const std::int64_t end = inputs.blocks * (chunk + 1) / chunks;
    alignas(64) float sums[kCodeChunk * kCodeOutputs];
    multiply(panel, first, end, sums);
    const std::int64_t row = inputs.first_row(linear.rows, first);
    const std::int64_t rows = inputs.first_row(linear.rows, end) - row;
    finish_outputs<Value, Out, kCodeOutputs>(linear, panel, row, rows, sums);
  });
}

template <class Value, class Multiply>
void run_code_panels(const LinearQuantisedParams& params, const CodeInputs& inputs,
                     const Multiply& multiply) {
  switch (params.linear.out_dtype) {
    case DType::f32: return run_code_panels<Value, float>(params, inputs, multiply);
    case DType::bf16: return run_code_panels<Value, bf16>(params, inputs, multiply);
    case DType::f16: return run_code_panels<Value, f16>(params, inputs, multiply);
  }
}

template <class Multiply>
void run_code_panels(const LinearQuantisedParams& params, const CodeInputs& inputs,
                     const Multiply& multiply) {
  switch (params.linear.dtype) {
    case DType::f32: return run_code_panels<float>(params, inputs, multiply);
    case DType::bf16: return run_code_panels<bf16>(params, inputs, multiply);
    case DType::f16: return run_code_panels<f16>(params, inputs, multiply);
  }
}

template <template <class> class Inputs>
void run_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_code_panels(params, inputs,
                  [&](std::int64_t panel, std::int64_t first, std::int64_t end, float* sums) {
                    const auto multiply = [&](const auto& codes) {
                      using Codes = std::remove_cvref_t<decltype(codes)>;
                      multiply_panel<Codes, Inputs>(params, inputs, panel, first, end, sums);
                    };
                    if constexpr (Inputs<Nibbles>::kOfFloats) {
                      if (params.e4m3) return multiply(SmallFloats(params));
                    }
                    with_codes(params, multiply);
                  });
}

// Of inputs that were rounded.
inline void run_whole_codes(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  if (params.input_bits == 16) return run_codes<ShortInputs>(params, inputs);
  run_codes<ByteInputs>(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
