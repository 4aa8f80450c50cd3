// Prefix attention in the emulator: sums against a reference in double, and the promise of its bits: a
// row that sees the same keys in the same order has the same result in every call, as a decode step, in
// a tree or in a chunk, alone or in a batch, with keys divided among blocks or not.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "attention_case.hpp"
#include "check.hpp"
#include "seeds.hpp"

namespace {

using attention_case::Buffer;
using trtspec::DType;

struct Shape {
  DType dtype;
  int heads, kv_heads, head_dim, block_size;
  int window = 0;
  float soft_cap = 0.0f;
  bool scaled = false;
  int table_width = 0;  // at least
};

using Tokens = std::vector<int>;  // a token's q, k and v follow from its id

struct Request {
  Tokens committed, rows;
  std::vector<int> parents;  // of the rows of a tree; none: a chunk
};

// What a row sees: the cache position of the first key, and all tokens in order, its own behind them.
using Path = std::vector<int>;
using Results = std::map<Path, std::vector<float>>;

class Call {
 public:
  Call(const Shape& shape, const std::vector<Request>& requests, unsigned seed)
      : shape_(shape), requests_(requests), random_(seed) {
    std::size_t longest = 0;
    for (const Request& r : requests) {
      longest = std::max(longest, r.committed.size() + r.rows.size());
    }
    const int needed = (int(longest) + shape.block_size - 1) / shape.block_size;
    width_ = std::max(shape.table_width, needed);
    num_blocks_ = needed * int(requests.size()) + 3;
    std::vector<int> pool(std::size_t(num_blocks_), 0);
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), random_);
    tables_.assign(requests.size() * std::size_t(width_), -1);
    for (std::size_t b = 0; b < requests.size(); ++b) {
      const std::size_t keys = requests[b].committed.size() + requests[b].rows.size();
      for (std::size_t i = 0; i * std::size_t(shape.block_size) < keys; ++i) {
        tables_[b * std::size_t(width_) + i] = pool.back();
        pool.pop_back();
      }
    }
    const std::size_t elements =
        std::size_t(num_blocks_ * shape.block_size * shape.kv_heads * shape.head_dim);
    for (int i = 0; i < 2; ++i) {
      caches_.emplace_back(shape.dtype, elements);
      scales_.emplace_back(DType::f32, elements / std::size_t(shape.head_dim));
      bytes_[i].resize(elements);
    }
    std::vector<Request> before;  // the rows that are committed, which see nothing here
    for (const Request& r : requests) before.push_back({{}, r.committed, {}});
    run(before, false);
  }

  // The results of all rows by what they see; compared with a reference.
  Results results() {
    run(requests_, true);
    Results found;
    std::size_t t = 0;
    for (std::size_t b = 0; b < requests_.size(); ++b) {
      const Request& r = requests_[b];
      for (int row = 0; row < int(r.rows.size()); ++row, ++t) {
        std::vector<int> keys;  // cache positions
        const int context = int(r.committed.size());
        const bool is_tree = !r.parents.empty();
        for (int p = 0; p < context + (is_tree ? 0 : row + 1); ++p) {
          if (shape_.window == 0 || positions_[t] - p < shape_.window) keys.push_back(p);
        }
        const std::size_t own = keys.size();
        for (int node = is_tree ? row : -1; node >= 0; node = r.parents[std::size_t(node)]) {
          keys.insert(keys.begin() + std::ptrdiff_t(own), context + node);
        }
        Path path = {keys.front()};
        for (const int p : keys) {
          path.push_back(p < context ? r.committed[std::size_t(p)]
                                     : r.rows[std::size_t(p - context)]);
        }
        path.push_back(r.rows[std::size_t(row)]);
        compare(t, b, keys);
        const std::size_t size = std::size_t(shape_.heads * shape_.head_dim);
        std::vector<float> out(size);
        for (std::size_t i = 0; i < size; ++i) out[i] = out_.get(t * size + i);
        const auto [at, is_new] = found.emplace(path, out);
        CHECK(is_new || at->second == out);
      }
    }
    return found;
  }

 private:
  std::size_t slot(std::size_t b, int position) const {
    const auto at = b * std::size_t(width_) + std::size_t(position / shape_.block_size);
    return std::size_t(tables_[at] * shape_.block_size + position % shape_.block_size);
  }

  void run(const std::vector<Request>& requests, bool attends) {
    std::size_t rows = 0;
    std::size_t most = 1;
    for (const Request& r : requests) {
      rows += r.rows.size();
      most = std::max(most, r.rows.size());
    }
    const std::size_t words = (most + 63) / 64;
    const std::size_t row_size =
        std::size_t((shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
    Buffer fused(shape_.dtype, rows * row_size);
    out_ = Buffer(shape_.dtype, rows * std::size_t(shape_.heads * shape_.head_dim));
    positions_.assign(rows, 0);
    std::vector<std::int64_t> slots(rows), mask(rows * words, 0);
    std::vector<std::int32_t> starts = {0}, contexts;
    std::vector<char> trees;
    for (std::size_t b = 0; b < requests.size(); ++b) {
      const Request& r = requests[b];
      const int context = int(r.committed.size());
      for (int row = 0; row < int(r.rows.size()); ++row) {
        const std::size_t t = std::size_t(starts.back() + row);
        std::mt19937 random(unsigned(r.rows[std::size_t(row)]));
        std::normal_distribution<float> normal;
        for (std::size_t i = 0; i < row_size; ++i) fused.set(t * row_size + i, normal(random));
        slots[t] = std::int64_t(slot(b, context + row));
        positions_[t] = context + row;
        if (r.parents.empty() || !attends) continue;
        positions_[t] = context;
        for (int node = row; node >= 0; node = r.parents[std::size_t(node)]) {
          mask[t * words + std::size_t(node) / 64] |= std::int64_t(1) << (node % 64);
          positions_[t] += node == 0 ? 0 : 1;
        }
      }
      starts.push_back(starts.back() + int(r.rows.size()));
      contexts.push_back(context);
      trees.push_back(!attends || !r.parents.empty());
    }
    params_ = {};
    auto* const q = static_cast<std::uint16_t*>(fused.data());
    params_.q = q;
    params_.k = q + shape_.heads * shape_.head_dim;
    params_.v = q + (shape_.heads + shape_.kv_heads) * shape_.head_dim;
    params_.q_stride = params_.k_stride = params_.v_stride = std::int64_t(row_size);
    params_.k_cache = shape_.scaled ? static_cast<void*>(bytes_[0].data()) : caches_[0].data();
    params_.v_cache = shape_.scaled ? static_cast<void*>(bytes_[1].data()) : caches_[1].data();
    params_.k_scale = shape_.scaled ? scales_[0].floats.data() : nullptr;
    params_.v_scale = shape_.scaled ? scales_[1].floats.data() : nullptr;
    params_.out = out_.data();
    params_.dtype = shape_.dtype;
    params_.rows = std::int64_t(rows);
    params_.requests = std::int64_t(requests.size());
    params_.heads = shape_.heads;
    params_.kv_heads = shape_.kv_heads;
    params_.head_dim = shape_.head_dim;
    params_.num_blocks = num_blocks_;
    params_.block_size = shape_.block_size;
    params_.table_width = width_;
    params_.mask_words = std::int64_t(words);
    params_.positions = positions_.data();
    params_.slot_mapping = slots.data();
    params_.block_tables = tables_.data();
    params_.query_start = starts.data();
    params_.context_lens = contexts.data();
    params_.is_tree = reinterpret_cast<const bool*>(trees.data());
    params_.tree_mask = mask.data();
    params_.scale = 1.0f / std::sqrt(float(shape_.head_dim));
    params_.sliding_window = shape_.window;
    params_.soft_cap = shape_.soft_cap;
    if (!attends) return trtspec::paged_tree_attention(params_);
    std::vector<float> workspace(trtspec::cuda::paged_tree_attention_workspace(params_) / 4, NAN);
    CHECK(!workspace.empty());
    CHECK_EQ(trtspec::cuda::paged_tree_attention(params_, workspace.data(), nullptr), cudaSuccess);
    queries_ = fused;
  }

  double cached(int which, std::size_t slot, int head, int d) const {
    const std::size_t at = slot * std::size_t(shape_.kv_heads) + std::size_t(head);
    const std::size_t i = at * std::size_t(shape_.head_dim) + std::size_t(d);
    return shape_.scaled ? double(bytes_[which][i]) * double(scales_[which].floats[at])
                         : double(caches_[std::size_t(which)].get(i));
  }

  void compare(std::size_t t, std::size_t b, const std::vector<int>& keys) {
    const int group = shape_.heads / shape_.kv_heads;
    const std::size_t stride = std::size_t(params_.q_stride);
    double worst = 0.0;
    for (int head = 0; head < shape_.heads; ++head) {
      std::vector<double> sums(std::size_t(shape_.head_dim), 0.0);
      double total = 0.0;
      for (const int key : keys) {
        double dot = 0.0;
        for (int d = 0; d < shape_.head_dim; ++d) {
          dot += double(queries_.get(t * stride + std::size_t(head * shape_.head_dim + d))) *
                 cached(0, slot(b, key), head / group, d);
        }
        double score = dot * double(params_.scale);
        if (shape_.soft_cap > 0) {
          score = double(shape_.soft_cap) * std::tanh(score / double(shape_.soft_cap));
        }
        const double weight = std::exp(score);
        total += weight;
        for (int d = 0; d < shape_.head_dim; ++d) {
          sums[std::size_t(d)] += weight * cached(1, slot(b, key), head / group, d);
        }
      }
      for (int d = 0; d < shape_.head_dim; ++d) {
        const std::size_t i =
            (t * std::size_t(shape_.heads) + std::size_t(head)) * std::size_t(shape_.head_dim) +
            std::size_t(d);
        const double off = std::fabs(sums[std::size_t(d)] / total - double(out_.get(i)));
        worst = std::isnan(off) ? HUGE_VAL : std::max(worst, off);
      }
    }
    // Weights are rounded to 16 bits before they meet V.
    const double tolerance = shape_.dtype == DType::f16 ? 2e-3 : 2e-2;
    if (worst > tolerance) {
      ++failed_checks();
      std::printf("row %d of request %d, which sees %d keys: off by %g\n", int(t), int(b),
                  int(keys.size()), worst);
    }
  }

  Shape shape_;
  std::vector<Request> requests_;
  std::mt19937 random_;
  int width_ = 0, num_blocks_ = 0;
  std::vector<Buffer> caches_, scales_;
  std::vector<std::int8_t> bytes_[2];
  Buffer out_{DType::bf16, 0}, queries_{DType::bf16, 0};
  std::vector<std::int64_t> positions_;
  std::vector<std::int32_t> tables_;
  trtspec::AttentionParams params_{};
};

Tokens text(int begin, int end) {
  Tokens tokens(std::size_t(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

// The text so far, and a tree of the 1 + depth tokens that come next, each beside `others` which
// do not; what comes next stands behind the others.
Request tree(int context, int depth, int others) {
  Request request{text(0, context), {context}, {-1}};
  for (int d = 1, parent = 0; d <= depth; ++d) {
    for (int i = 0; i <= others; ++i) {
      request.rows.push_back(i == others ? context + d : 10000 * (i + 1) + context + d);
      request.parents.push_back(parent);
    }
    parent = int(request.rows.size()) - 1;
  }
  return request;
}

Request chunk(int begin, int end) { return {text(0, begin), text(begin, end), {}}; }

// The rows of all calls that see the same have the same bits; some rows are in several calls.
void expect_equal(const Shape& shape, const std::vector<std::vector<Request>>& calls, int shared,
                  unsigned seed) {
  Results all;
  int met = 0;
  for (const std::vector<Request>& requests : calls) {
    for (const auto& [path, out] : Call(shape, requests, seed++).results()) {
      const auto [at, is_new] = all.emplace(path, out);
      CHECK(is_new || at->second == out);
      met += !is_new;
    }
  }
  CHECK(met >= shared);
}

void check_all(unsigned seed) {
  // A context that ends in front of, at and behind the border of a tile and of a split.
  for (const int context : {250, 256, 511, 33}) {
    const DType dtype = context % 2 == 0 ? DType::bf16 : DType::f16;
    const Shape shape{dtype, 8, 2, 64, 16};
    expect_equal(shape,
                 {{tree(context, 7, 2)},
                  {chunk(context + 1, context + 2)},
                  {tree(context + 4, 0, 0), tree(3, 20, 0)},
                  {chunk(2, 3), chunk(context - 30, context + 8)}},
                 10, seed);
  }
  // Keys divided among blocks, and gone through in order: 33 requests with 4 heads.
  std::vector<Request> batch(32, tree(1, 1, 1));
  batch.push_back(tree(250, 9, 1));
  batch.push_back(chunk(500, 540));
  const Shape few{DType::bf16, 4, 4, 64, 16};
  expect_equal(few, {{tree(250, 9, 1)}, {chunk(500, 540)}, batch}, 59, seed);
  // Other heads, windows, caps, and caches of 8 bits.
  const std::vector<std::vector<Request>> calls = {
      {tree(100, 5, 2)}, {chunk(80, 106), tree(40, 4, 8)}, {tree(103, 0, 0)}};
  expect_equal({DType::bf16, 2, 1, 128, 8, 24}, calls, 6, seed);
  expect_equal({DType::f16, 6, 2, 80, 16, 0, 0.7f, false, 700}, calls, 6, seed);
  expect_equal({DType::bf16, 20, 1, 96, 16, 50, 0, true}, calls, 6, seed);
}

}  // namespace

int main() {
  trtspec::cuda::force_attention_tiles(trtspec::cuda::AttentionTiles::prefix);
  for_seeds(check_all);
  return check_result();
}
