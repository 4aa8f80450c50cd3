// A small matrix product in registers, the core of linear and attention. Only for kernel sources.
#pragma once
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

constexpr int kRowBlock = 6;  // rows whose sums fit in registers together

// Vectors of columns that go with `rows` rows in the registers of the instruction set: fewer than 8
// sums would wait for each other's multiply-adds.
constexpr int columns_for(int rows) {
#if defined(__AVX512F__)
  return rows > 0 ? 4 : 0;
#else
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
#endif
}

// The weights of an input, for a vector of columns: one row behind the other in memory, or in pairs
// of bfloat16, those of two inputs side by side for each column.
template <class Weight>
TRTSPEC_INLINE VF load_weights(const Weight* w, std::int64_t stride, std::int64_t input) {
  return load(w + input * stride);
}

struct bf16_pair {
  bf16 values[2];
};

TRTSPEC_INLINE VF load_weights(const bf16_pair* w, std::int64_t stride, std::int64_t input) {
  const VU both = *reinterpret_cast<const VUu*>(w + input / 2 * stride);
  return (VF)(input % 2 == 0 ? both << 16 : both & 0xffff0000u);
}

// What to bring nearer from memory during a product, a bit at every step: processors drop
// prefetches that come too close to each other.
struct NothingAhead {
  TRTSPEC_INLINE void step() {}
};

// `Lines` cache lines from `next` on at each step, and `stride` bytes on to the next.
template <int Lines>
struct StreamAhead {
  const char* next;
  std::int64_t stride;

  TRTSPEC_INLINE void step() {
    for (int line = 0; line < Lines; ++line) __builtin_prefetch(next + 64 * line, 0, 2);
    next += stride;
  }
};

// sums[r][c] += x[r][0] * w[0][c] + x[r][1] * w[1][c] + ..., one addition after the other in the
// order of k, for Rows rows and Columns vectors of columns. `fresh`: the sums start from zero
// instead of from what is there.
template <int Rows, int Columns, class Weight, class Ahead>
TRTSPEC_INLINE void gemm_registers(std::int64_t depth, const float* x, std::int64_t x_stride,
                                   const Weight* w, std::int64_t w_stride, float* sums,
                                   std::int64_t sums_stride, bool fresh, Ahead& ahead) {
  VF sum[Rows][Columns];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) {
      sum[r][c] = fresh ? VF{} : load(sums + r * sums_stride + c * kLanes);
    }
  }
  Ahead local = ahead;  // in registers
  for (std::int64_t k = 0; k < depth; ++k) {
    local.step();
    // Inputs or weights, whichever are fewer, stay in registers: beside 3 x 4 sums there is no room
    // for 4 weights and an input.
    if constexpr (Rows < Columns) {
      VF value[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) value[r] = splat(x[r * x_stride + k]);
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) {
        const VF weight = load_weights(w + c * kLanes, w_stride, k);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sum[r][c] = fma(value[r], weight, sum[r][c]);
      }
    } else {
      VF weight[Columns];
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) {
        weight[c] = load_weights(w + c * kLanes, w_stride, k);
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const VF value = splat(x[r * x_stride + k]);
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) sum[r][c] = fma(value, weight[c], sum[r][c]);
      }
    }
  }
  ahead = local;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) store(sums + r * sums_stride + c * kLanes, sum[r][c]);
  }
}

template <int Rows, class Weight, class Ahead>
__attribute__((noinline)) void gemm_rows(std::int64_t columns, std::int64_t depth, const float* x,
                                         std::int64_t x_stride, const Weight* w,
                                         std::int64_t w_stride, float* sums,
                                         std::int64_t sums_stride, bool fresh, Ahead& ahead) {
  constexpr int kColumns = columns_for(Rows);
  std::int64_t c = 0;
  for (; c + kColumns * kLanes <= columns; c += kColumns * kLanes) {
    gemm_registers<Rows, kColumns>(depth, x, x_stride, w + c, w_stride, sums + c, sums_stride,
                                   fresh, ahead);
  }
  for (; c < columns; c += kLanes) {
    gemm_registers<Rows, 1>(depth, x, x_stride, w + c, w_stride, sums + c, sums_stride, fresh,
                            ahead);
  }
}

// Blocks that `rows` rows are divided into.
constexpr std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// Steps ahead that gemm_block makes for every element of depth.
constexpr std::int64_t gemm_steps(std::int64_t rows, std::int64_t columns) {
  const std::int64_t blocks = row_blocks(rows);
  const std::int64_t wide = columns_for(int((rows + blocks - 1) / blocks)) * kLanes;
  return blocks * ((columns + wide - 1) / wide);
}

template <int N>
struct RowCount {
  static constexpr int value = N;
};

// body(RowCount<n>, first row) for every block of n rows that `rows` rows are divided into.
template <class Body>
TRTSPEC_INLINE void for_row_blocks(std::int64_t rows, const Body& body) {
  const std::int64_t blocks = row_blocks(rows);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t first = rows * b / blocks;  // blocks of nearly equal size
    switch (rows * (b + 1) / blocks - first) {
      case 1: body(RowCount<1>{}, first); break;
      case 2: body(RowCount<2>{}, first); break;
      case 3: body(RowCount<3>{}, first); break;
      case 4: body(RowCount<4>{}, first); break;
      case 5: body(RowCount<5>{}, first); break;
      case 6: body(RowCount<6>{}, first); break;
    }
  }
}

// The same for any number of rows and columns (columns a multiple of kLanes).
template <class Weight, class Ahead>
inline void gemm_block(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* x,
                       std::int64_t x_stride, const Weight* w, std::int64_t w_stride, float* sums,
                       std::int64_t sums_stride, bool fresh, Ahead& ahead) {
  for_row_blocks(rows, [&](auto count, std::int64_t first) {
    gemm_rows<decltype(count)::value>(columns, depth, x + first * x_stride, x_stride, w, w_stride,
                                      sums + first * sums_stride, sums_stride, fresh, ahead);
  });
}

}  // namespace trtspec::TRTSPEC_ISA_NS
