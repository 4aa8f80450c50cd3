// A random call of paged_tree_attention: ragged requests of chunks, decode rows and trees over a
// shuffled block pool, some rows padding, keys that nobody sees NaN.
#pragma once

#include <trtspec/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace attention_case {

using trtspec::DType;

struct Sizes {
  DType dtype;
  std::int64_t heads, kv_heads, head_dim, block_size, window;
  std::vector<int> rows;         // of each request; negative: a tree of as many
  std::vector<int> contexts;     // of each request
  std::int64_t table_width = 0;  // 0: just wide enough
  float soft_cap = 0;
  bool scaled = false;  // caches of 8 bits
};

inline std::uint16_t to_half(DType dtype, float x) {
  if (dtype == DType::f16) {
    const auto half = static_cast<_Float16>(x);
    std::uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float to_float(DType dtype, std::uint16_t bits) {
  if (dtype == DType::f16) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return float(half);
  }
  const std::uint32_t wide = std::uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

// Elements of one dtype.
struct Buffer {
  DType dtype;
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;

  Buffer(DType type, std::size_t size) : dtype(type) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (type == DType::f32) {
      floats.assign(size, nan);
    } else {
      halves.assign(size, type == DType::f16 ? 0x7e00 : 0x7fc0);
    }
  }
  std::size_t size() const { return floats.size() + halves.size(); }
  void* data() { return dtype == DType::f32 ? static_cast<void*>(floats.data()) : halves.data(); }
  float get(std::size_t i) const {
    return dtype == DType::f32 ? floats[i] : to_float(dtype, halves[i]);
  }
  void set(std::size_t i, float x) {
    if (dtype == DType::f32) {
      floats[i] = x;
    } else {
      halves[i] = to_half(dtype, x);
    }
  }
  bool operator==(const Buffer& other) const {
    return halves == other.halves &&
           (floats.empty() ||
            std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0);
  }
};

class Case {
 public:
  Case(const Sizes& sizes, unsigned seed)
      : sizes_(sizes),
        random_(seed),
        rows_(count_rows(sizes) + 2),  // two rows behind the last request
        q_(sizes.dtype, std::size_t(rows_ * (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)),
        out_(sizes.dtype, std::size_t(rows_ * sizes.heads * sizes.head_dim)),
        k_cache_(sizes.dtype, 0),
        v_cache_(sizes.dtype, 0) {
    fill(q_);
    lay_out();
  }

  trtspec::AttentionParams params() {
    const std::int64_t d = sizes_.head_dim;
    const std::int64_t stride = (sizes_.heads + 2 * sizes_.kv_heads) * d;  // a fused projection
    char* q = static_cast<char*>(q_.data());
    const std::int64_t element = std::int64_t(trtspec::size_of(sizes_.dtype));
    return {.q = q,
            .k = q + sizes_.heads * d * element,
            .v = q + (sizes_.heads + sizes_.kv_heads) * d * element,
            .q_stride = stride,
            .k_stride = stride,
            .v_stride = stride,
            .k_cache = sizes_.scaled ? k_bytes_.data() : k_cache_.data(),
            .v_cache = sizes_.scaled ? v_bytes_.data() : v_cache_.data(),
            .out = out_.data(),
            .dtype = sizes_.dtype,
            .rows = rows_,
            .requests = std::int64_t(sizes_.rows.size()),
            .heads = sizes_.heads,
            .kv_heads = sizes_.kv_heads,
            .head_dim = d,
            .num_blocks = num_blocks_,
            .block_size = sizes_.block_size,
            .table_width = width_,
            .mask_words = words_,
            .positions = positions_.data(),
            .slot_mapping = slots_.data(),
            .block_tables = tables_.data(),
            .query_start = starts_.data(),
            .context_lens = contexts_.data(),
            .is_tree = reinterpret_cast<const bool*>(trees_.data()),
            .tree_mask = mask_.data(),
            .scale = 1.0f / std::sqrt(float(d)),
            .sliding_window = sizes_.window,
            .soft_cap = sizes_.soft_cap,
            .k_scale = sizes_.scaled ? k_scale_.floats.data() : nullptr,
            .v_scale = sizes_.scaled ? v_scale_.floats.data() : nullptr};
  }
  bool has_caches_of(const Case& other) const {
    return k_cache_ == other.k_cache_ && v_cache_ == other.v_cache_ && k_scale_ == other.k_scale_ &&
           v_scale_ == other.v_scale_ && k_bytes_ == other.k_bytes_ && v_bytes_ == other.v_bytes_;
  }
  const Buffer& out() const { return out_; }

 private:
  static std::int64_t count_rows(const Sizes& sizes) {
    std::int64_t rows = 0;
    for (const int count : sizes.rows) rows += std::abs(count);
    return rows;
  }

  void fill(Buffer& buffer) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer.set(i, normal(random_));
  }

  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }

  void lay_out() {
    const std::int64_t requests = std::int64_t(sizes_.rows.size());
    std::int64_t longest = 0;
    int most_nodes = 1;
    for (std::size_t b = 0; b < sizes_.rows.size(); ++b) {
      longest = std::max<std::int64_t>(longest, sizes_.contexts[b] + std::abs(sizes_.rows[b]));
      most_nodes = std::max(most_nodes, -sizes_.rows[b]);
    }
    const std::int64_t needed = (longest + sizes_.block_size - 1) / sizes_.block_size;
    width_ = std::max(sizes_.table_width, needed);
    words_ = (most_nodes + 63) / 64 + 1;
    num_blocks_ = requests * needed + 3;
    std::vector<std::int32_t> pool(static_cast<std::size_t>(num_blocks_));
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), random_);
    const std::size_t row = std::size_t(sizes_.kv_heads * sizes_.head_dim);
    k_cache_ = Buffer(sizes_.dtype, std::size_t(num_blocks_ * sizes_.block_size) * row);
    v_cache_ = k_cache_;
    k_bytes_.assign(sizes_.scaled ? k_cache_.size() : 0, 0);
    v_bytes_ = k_bytes_;
    k_scale_ = Buffer(DType::f32, k_bytes_.size() / std::size_t(sizes_.head_dim));
    v_scale_ = k_scale_;
    tables_.assign(std::size_t(requests * width_), -1);
    starts_ = {0};
    mask_.assign(std::size_t(rows_ * words_), 0);
    slots_.assign(std::size_t(rows_), -1);
    positions_.assign(std::size_t(rows_), 0);
    for (std::int64_t b = 0; b < requests; ++b) {
      const int context = sizes_.contexts[std::size_t(b)];
      const int count = std::abs(sizes_.rows[std::size_t(b)]);
      const bool tree = sizes_.rows[std::size_t(b)] < 0;
      const std::int64_t blocks = (context + count + sizes_.block_size - 1) / sizes_.block_size;
      for (std::int64_t i = 0; i < blocks; ++i) {
        tables_[std::size_t(b * width_ + i)] = pool.back();
        pool.pop_back();
      }
      contexts_.push_back(context);
      trees_.push_back(tree);
      for (int p = 0; p < context; ++p) write_random(std::size_t(slot(b, p)));
      const std::int32_t first = starts_.back();
      starts_.push_back(first + count);
      // Row 1 of some trees, without children, and the last row of some chunks are padding.
      const bool padding = count > 2 && b % 2 == 1;
      std::vector<int> depth;
      for (int i = 0; i < count; ++i) {
        const std::size_t t = std::size_t(first + i);
        slots_[t] = slot(b, context + i);
        int parent = i == 0 ? -1 : below(i);
        if (padding && tree && parent == 1) parent = 0;
        depth.push_back(i == 0 ? 0 : depth[std::size_t(parent)] + 1);
        positions_[t] = context + (tree ? depth.back() : i);
        auto* bits = mask_.data() + t * std::size_t(words_);
        if (parent >= 0) {
          const auto* above = mask_.data() + std::size_t(first + parent) * std::size_t(words_);
          std::copy(above, above + words_, bits);
        }
        bits[i / 64] = std::int64_t(std::uint64_t(bits[i / 64]) | std::uint64_t{1} << (i % 64));
      }
      if (padding) slots_[std::size_t(first + (tree ? 1 : count - 1))] = -1;
    }
  }

  std::int64_t slot(std::int64_t b, std::int64_t position) const {
    const std::int64_t block = tables_[std::size_t(b * width_ + position / sizes_.block_size)];
    return block * sizes_.block_size + position % sizes_.block_size;
  }

  void write_random(std::size_t at) {
    std::normal_distribution<float> normal;
    const std::size_t row = std::size_t(sizes_.kv_heads * sizes_.head_dim);
    for (std::size_t i = 0; i < row; ++i) {
      k_cache_.set(at * row + i, normal(random_));
      v_cache_.set(at * row + i, normal(random_));
    }
    if (!sizes_.scaled) return;
    for (std::size_t i = 0; i < row; ++i) {
      k_bytes_[at * row + i] = std::int8_t(below(255) - 127);
      v_bytes_[at * row + i] = std::int8_t(below(255) - 127);
    }
    const std::size_t heads = std::size_t(sizes_.kv_heads);
    for (std::size_t h = 0; h < heads; ++h) {
      k_scale_.set(at * heads + h, float(1 + below(30)) / 1000);
      v_scale_.set(at * heads + h, float(1 + below(30)) / 1000);
    }
  }

  Sizes sizes_;
  std::mt19937 random_;
  std::int64_t rows_, num_blocks_ = 0, width_ = 0, words_ = 1;
  Buffer q_, out_, k_cache_, v_cache_;
  Buffer k_scale_{DType::f32, 0}, v_scale_{DType::f32, 0};
  std::vector<std::int8_t> k_bytes_, v_bytes_;
  std::vector<std::int64_t> positions_, slots_, mask_;
  std::vector<std::int32_t> tables_, starts_, contexts_;
  std::vector<char> trees_;
};

}  // namespace attention_case
