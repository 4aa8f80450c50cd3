// The attention kernels in the emulator against the CPU kernel: caches equal, outputs to rounding.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "attention_case.hpp"
#include "check.hpp"
#include "seeds.hpp"

namespace {

using attention_case::Case;
using attention_case::Sizes;
using trtspec::DType;

const char* name_of(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "f16";
}

void compare(const Sizes& sizes, unsigned seed) {
  Case expected(sizes, seed);
  Case got(sizes, seed);
  trtspec::paged_tree_attention(expected.params());
  const trtspec::AttentionParams params = got.params();
  std::vector<float> workspace(trtspec::cuda::paged_tree_attention_workspace(params) / 4 + 64, NAN);
  CHECK_EQ(trtspec::cuda::paged_tree_attention(params, workspace.data(), nullptr), cudaSuccess);
  CHECK(got.has_caches_of(expected));
  // Weights are rounded to 16 bits before they meet V.
  const double tolerance = sizes.dtype == DType::f32   ? 4e-6
                           : sizes.dtype == DType::f16 ? 2e-3
                                                       : 2e-2;
  double worst = 0.0;
  for (std::int64_t i = 0; i < params.rows * params.heads * params.head_dim; ++i) {
    const double difference = std::fabs(double(got.out().get(std::size_t(i))) -
                                        double(expected.out().get(std::size_t(i))));
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  if (worst > tolerance) {
    ++failed_checks();
    std::printf("%s%s, %d/%d heads of %d, blocks of %d, window %d: off by %g\n",
                name_of(sizes.dtype), sizes.scaled ? ", K/V of 8 bits" : "", int(sizes.heads),
                int(sizes.kv_heads), int(sizes.head_dim), int(sizes.block_size), int(sizes.window),
                worst);
  }
}

// Every head size, block size and kind of call under each of the emulator's seeds, and with all
// dtypes in three of them.
void compare_all(unsigned seed) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  unsigned turn = seed;
  unsigned values = 100 * seed;
  for (const int head_dim : {64, 128, 80, 96, 20, 160}) {
    // Decode rows only, then trees and chunks, of few queries and of many; keys split and not.
    compare({kTypes[turn++ % 3], 2, 2, head_dim, 16, 0, {1, 1, 1}, {5, 130, 0}}, values++);
    compare({kTypes[turn++ % 3], 2, 1, head_dim, 8, 24, {-5, -6, 3}, {40, 90, 0}, 64}, values++);
    compare({kTypes[turn % 3], 8, 1, head_dim, 16, 0, {1, -9, -1, 4}, {100, 77, 3, 0}, 40},
            values++);
    compare({kTypes[turn % 3], 8, 1, head_dim, 16, 0, {-5, 20}, {7, 70}, 40}, values++);
    turn += 2;
    for (const DType dtype : kTypes) {
      compare({dtype, 4, 2, head_dim, 8, 24, {-5, 6, 1, 3}, {40, 90, 130, 0}, 64, 0, true},
              values++);
    }
  }
  compare({kTypes[turn % 3], 8, 2, 64, 5, 0, {-70, 20, 1}, {33, 40, 150}, 0, 0.7f, true}, values++);
  compare({kTypes[turn++ % 3], 8, 2, 64, 5, 0, {-70, 20, 1}, {33, 40, 150}}, values++);
  compare({kTypes[turn++ % 3], 4, 4, 128, 16, 40, {75, -30}, {60, 128}}, values++);
  compare({kTypes[turn++ % 3], 1, 1, 64, 16, 0, {-13, -11}, {64, 0}, 100}, values++);
  compare({kTypes[turn++ % 3], 4, 2, 64, 16, 40, {30, -20}, {60, 128}, 0, 0.7f}, values++);
}

}  // namespace

int main() {
  for_seeds(compare_all);
  // Tiles that the launcher would not choose: wide ones for few queries, narrow ones for many.
  using trtspec::cuda::AttentionTiles;
  std::vector<std::size_t> workspaces;
  for (const auto tiles : {AttentionTiles::wide, AttentionTiles::narrow, AttentionTiles::prefix,
                           AttentionTiles::chosen}) {
    trtspec::cuda::force_attention_tiles(tiles);
    Case few({DType::bf16, 8, 1, 64, 16, 0, {-5, 20}, {9, 70}, 900}, 1);
    workspaces.push_back(trtspec::cuda::paged_tree_attention_workspace(few.params()));
    compare({DType::bf16, 8, 1, 64, 16, 0, {1, -9, 4}, {100, 77, 0}, 40}, 1);
    compare({DType::bf16, 8, 1, 64, 16, 0, {-5, 70}, {7, 70}, 40}, 2);
    compare({DType::f16, 8, 1, 96, 16, 0, {-5, 70}, {7, 70}, 40, 0, true}, 2);
    compare({DType::bf16, 4, 2, 128, 8, 24, {-5, -6, 3}, {40, 90, 0}, 64}, 3);
  }
  CHECK(workspaces[0] != workspaces[1]);
  // Many requests, more than a warp looks at together, some without rows.
  std::vector<int> rows(70, 1);
  std::vector<int> contexts(70, 9);
  rows[3] = rows[40] = 0;
  rows[69] = -7;
  compare({DType::bf16, 2, 2, 64, 4, 0, rows, contexts}, 1);
  return check_result();
}
