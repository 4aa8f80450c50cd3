// rotated_tree_attention in the emulator: the bits of rows that are turned here, and of
// paged_tree_attention behind, also in the caches.
#include <kernels.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "attention_case.hpp"
#include "check.hpp"
#include "seeds.hpp"

namespace {

using attention_case::Case;
using attention_case::Sizes;
using trtspec::DType;

// Heads of a call in place, as trtspec/models/rope.py turns them.
void turn(DType dtype, const void* rows, std::int64_t stride, std::int64_t heads,
          const trtspec::AttentionParams& p, const trtspec::cuda::RotationParams& rotation) {
  const std::int64_t pairs = rotation.size / 2;
  const auto get = [&](std::int64_t i) {
    return dtype == DType::f32
               ? static_cast<const float*>(rows)[i]
               : attention_case::to_float(dtype, static_cast<const std::uint16_t*>(rows)[i]);
  };
  const auto set = [&](std::int64_t i, float x) {
    void* const to = const_cast<void*>(rows);
    if (dtype == DType::f32) {
      static_cast<float*>(to)[i] = x;
    } else {
      static_cast<std::uint16_t*>(to)[i] = attention_case::to_half(dtype, x);
    }
  };
  for (std::int64_t t = 0; t < p.rows; ++t) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const std::int64_t begin = t * stride + head * p.head_dim;
        const std::int64_t first = begin + (rotation.interleaved ? 2 * i : i);
        const std::int64_t second = rotation.interleaved ? first + 1 : first + pairs;
        const float x = get(first), y = get(second);
        const float cos = rotation.cos[t * pairs + i], sin = rotation.sin[t * pairs + i];
        const float x_cos = x * cos, y_sin = y * sin, y_cos = y * cos, x_sin = x * sin;
        set(first, x_cos - y_sin);
        set(second, y_cos + x_sin);
      }
    }
  }
}

void compare(const Sizes& sizes, std::int64_t turning, bool interleaved, unsigned seed) {
  Case fused(sizes, seed), apart(sizes, seed);
  const trtspec::AttentionParams p = fused.params();
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> cos(std::size_t(p.rows * turning / 2)), sin(cos.size());
  for (float& x : cos) x = uniform(random);
  for (float& x : sin) x = uniform(random);
  const trtspec::cuda::RotationParams rotation{cos.data(), sin.data(), turning, interleaved};
  std::vector<float> workspace(trtspec::cuda::rotated_tree_attention_workspace(p) / 4, NAN);
  CHECK_EQ(trtspec::cuda::rotated_tree_attention(p, rotation, workspace.data(), nullptr),
           cudaSuccess);

  const trtspec::AttentionParams q = apart.params();
  turn(sizes.dtype, q.q, q.q_stride, q.heads, q, rotation);
  turn(sizes.dtype, q.k, q.k_stride, q.kv_heads, q, rotation);
  std::vector<float> scratch(trtspec::cuda::paged_tree_attention_workspace(q) / 4 + 1, NAN);
  CHECK_EQ(trtspec::cuda::paged_tree_attention(q, scratch.data(), nullptr), cudaSuccess);
  CHECK(fused.out() == apart.out());
  CHECK(fused.has_caches_of(apart));
}

void compare_all(unsigned seed) {
  const std::vector<int> rows = {-5, 6, 1, 3}, contexts = {40, 9, 70, 0};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool scaled : {false, true}) {
      const bool interleaved = scaled == (dtype == DType::bf16);
      compare({dtype, 4, 2, 64, 8, 24, rows, contexts, 64, 0, scaled}, 64, interleaved, seed);
      compare({dtype, 2, 1, 80, 16, 0, rows, contexts, 0, 0, scaled}, 40, !interleaved, seed);
    }
  }
}

}  // namespace

int main() {
  for_seeds(compare_all);
  Case odd({DType::f32, 1, 1, 64, 16, 0, {1}, {0}}, 1);
  for (const std::int64_t size : {63, 66}) {
    CHECK_EQ(trtspec::cuda::rotated_tree_attention(odd.params(), {nullptr, nullptr, size, false},
                                                   nullptr, nullptr),
             cudaErrorInvalidValue);
  }
  using trtspec::cuda::AttentionTiles;
  trtspec::cuda::force_attention_tiles(AttentionTiles::prefix);
  compare({DType::bf16, 8, 2, 128, 16, 0, {-9, 3}, {40, 70}}, 128, false, 3);
  return check_result();
}
