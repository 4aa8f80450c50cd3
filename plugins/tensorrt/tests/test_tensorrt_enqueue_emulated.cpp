// The plugins' launches on the emulator, against the CPU kernels: that every tensor, size and field
// reaches its kernel.
#include <trtspec/acceptance.hpp>
#include <trtspec/attention.hpp>
#include <trtspec/sampling.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "given.hpp"

namespace {

using namespace given;
using nvinfer1::DataType;
using Longs = std::vector<std::int64_t>;
using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

constexpr auto f32 = DataType::kFLOAT;
constexpr auto i32 = DataType::kINT32;
constexpr auto i64 = DataType::kINT64;

std::mt19937_64 rng(7);

Floats randoms(std::size_t count) {
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

// One enqueue with the workspace that the plugin asks for, filled with rubbish.
void enqueue(nvinfer1::IPluginV3& plugin, const std::vector<Tensor>& tensors,
             const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  const auto dynamic = descs_of(tensors);
  const std::size_t bytes =
      build_of(plugin)->getWorkspaceSize(dynamic.data(), std::int32_t(dynamic.size()), nullptr, 0);
  std::vector<nvinfer1::PluginTensorDesc> descs;
  for (const auto& desc : dynamic) descs.push_back(desc.desc);
  CHECK_EQ(runtime_of(plugin)->onShapeChange(descs.data(), std::int32_t(descs.size()), nullptr, 0),
           0);
  std::vector<unsigned char> memory(bytes + 512, 0xa5);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  std::align(256, bytes, workspace, space);
  CHECK_EQ(runtime_of(plugin)->enqueue(descs.data(), nullptr, inputs.data(), outputs.data(),
                                       workspace, nullptr),
           0);
  auto* const end = static_cast<unsigned char*>(workspace) + bytes;
  CHECK(std::all_of(end, memory.data() + memory.size(), [](auto byte) { return byte == 0xa5; }));
}

// Requests: a tree of five rows, a causal chunk of three, a tree of two words of mask; one row of
// padding behind them.
struct Rows {
  static constexpr std::int64_t kRows = 12;
  static constexpr std::int64_t kRequests = 3;
  static constexpr std::int64_t kWords = 2;
  static constexpr std::int64_t kBlockSize = 8;
  static constexpr std::int64_t kTable = 20;
  static constexpr std::int64_t kBlocks = kRequests * kTable;

  Ints query_start = {0, 5, 8, 11};
  Ints context_lens = {13, 6, 20};
  Ints is_tree = {1, 0, 1};
  bool tree_flags[3] = {true, false, true};
  Ints block_tables;
  Longs positions, slot_mapping, tree_mask;

  Rows() : positions(kRows), slot_mapping(kRows, -1), tree_mask(kRows * kWords) {
    for (std::int32_t i = 0; i < kBlocks; ++i) block_tables.push_back(i);
    std::shuffle(block_tables.begin(), block_tables.end(), rng);
    for (std::int64_t b = 0; b < kRequests; ++b) {
      for (std::int64_t t = query_start[b]; t < query_start[b + 1]; ++t) {
        const std::int64_t index = t - query_start[b];
        const std::int64_t place = context_lens[b] + index;
        positions[t] = place - (is_tree[b] != 0 ? index / 2 : 0);
        slot_mapping[t] =
            block_tables[b * kTable + place / kBlockSize] * kBlockSize + place % kBlockSize;
        // Itself, the root, and every other row before it.
        for (std::int64_t j = index; j >= 0; j -= 2) tree_mask[t * kWords] |= std::int64_t{1} << j;
        tree_mask[t * kWords] |= 1;
      }
    }
    tree_mask[10 * kWords + 1] = 1;  // position context + 64, written by some call before
  }
};

void test_attention(std::int64_t window, float soft_cap) {
  const Rows rows;
  constexpr std::int64_t heads = 4, kv_heads = 2, dim = 16;
  const auto q = randoms(Rows::kRows * heads * dim);
  const auto k = randoms(Rows::kRows * kv_heads * dim);
  const auto v = randoms(Rows::kRows * kv_heads * dim);
  const std::size_t cache_size = Rows::kBlocks * Rows::kBlockSize * kv_heads * dim;
  Floats k_cache = randoms(cache_size), v_cache = randoms(cache_size);
  Floats expected_k = k_cache, expected_v = v_cache;
  Floats out(q.size(), NAN), expected(q.size(), NAN);
  trtspec::paged_tree_attention({
      .q = q.data(),
      .k = k.data(),
      .v = v.data(),
      .q_stride = heads * dim,
      .k_stride = kv_heads * dim,
      .v_stride = kv_heads * dim,
      .k_cache = expected_k.data(),
      .v_cache = expected_v.data(),
      .out = expected.data(),
      .dtype = trtspec::DType::f32,
      .rows = Rows::kRows,
      .requests = Rows::kRequests,
      .heads = heads,
      .kv_heads = kv_heads,
      .head_dim = dim,
      .num_blocks = Rows::kBlocks,
      .block_size = Rows::kBlockSize,
      .table_width = Rows::kTable,
      .mask_words = Rows::kWords,
      .positions = rows.positions.data(),
      .slot_mapping = rows.slot_mapping.data(),
      .block_tables = rows.block_tables.data(),
      .query_start = rows.query_start.data(),
      .context_lens = rows.context_lens.data(),
      .is_tree = rows.tree_flags,
      .tree_mask = rows.tree_mask.data(),
      .scale = 0.3F,
      .sliding_window = window,
      .soft_cap = soft_cap,
  });
  const PluginPtr plugin = Given()
                               .integer("num_heads", heads)
                               .integer("num_kv_heads", kv_heads)
                               .integer("head_dim", dim)
                               .number("scale", 0.3F)
                               .integer("sliding_window", std::int32_t(window))
                               .number("soft_cap", soft_cap)
                               .create("PagedTreeAttention");
  const std::vector<std::int64_t> cache = {Rows::kBlocks, Rows::kBlockSize, kv_heads, dim};
  enqueue(*plugin,
          {{f32, {Rows::kRows, heads, dim}},
           {f32, {Rows::kRows, kv_heads, dim}},
           {f32, {Rows::kRows, kv_heads, dim}},
           {f32, cache},
           {f32, cache},
           {i64, {Rows::kRows}},
           {i64, {Rows::kRows}},
           {i32, {Rows::kRequests, Rows::kTable}},
           {i32, {Rows::kRequests + 1}},
           {i32, {Rows::kRequests}},
           {i32, {Rows::kRequests}},
           {i64, {Rows::kRows, Rows::kWords}}},
          {q.data(), k.data(), v.data(), k_cache.data(), v_cache.data(), rows.positions.data(),
           rows.slot_mapping.data(), rows.block_tables.data(), rows.query_start.data(),
           rows.context_lens.data(), rows.is_tree.data(), rows.tree_mask.data()},
          {out.data(), k_cache.data(), v_cache.data()});
  CHECK(k_cache == expected_k);
  CHECK(v_cache == expected_v);
  for (std::size_t i = 0; i < out.size(); ++i) CHECK_NEAR(out[i], expected[i], 1e-5);
}

void test_tree_mask(std::int64_t window) {
  const Rows rows;
  constexpr std::int64_t width = 5, length = 96;
  const Longs padded(Rows::kRequests * width, -7), view(length, -7);
  Floats mask(Rows::kRequests * width * length, NAN);
  const PluginPtr plugin = Given()
                               .word("mask_dtype", "float32")
                               .integer("sliding_window", std::int32_t(window))
                               .create("TreeMask");
  enqueue(*plugin,
          {{i64, {Rows::kRequests, width}},
           {i64, {Rows::kRows}},
           {i64, {Rows::kRows}},
           {i32, {Rows::kRequests + 1}},
           {i32, {Rows::kRequests}},
           {i32, {Rows::kRequests}},
           {i64, {Rows::kRows, Rows::kWords}},
           {i64, {length}}},
          {padded.data(), rows.positions.data(), rows.slot_mapping.data(), rows.query_start.data(),
           rows.context_lens.data(), rows.is_tree.data(), rows.tree_mask.data(), view.data()},
          {mask.data()});
  for (std::int64_t b = 0; b < Rows::kRequests; ++b) {
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t t = rows.query_start[b] + i;
      const bool there = t < rows.query_start[b + 1];
      for (std::int64_t p = 0; p < length; ++p) {
        const std::int64_t bit = p - rows.context_lens[b];
        bool seen = bit < (rows.is_tree[b] != 0 ? 0 : i + 1) &&
                    (window == 0 || rows.positions[t] - p < window);
        if (rows.is_tree[b] != 0 && bit >= 0 && bit < 128) {
          seen = (rows.tree_mask[t * Rows::kWords + bit / 64] >> (bit % 64) & 1) != 0;
        }
        if (!there) seen = p == 0;
        CHECK_EQ(mask[(b * width + i) * length + p],
                 seen ? 0.0F : -std::numeric_limits<float>::infinity());
      }
    }
  }
}

void test_sample() {
  constexpr std::int64_t rows = 6, vocab = 3000;
  const auto logits = randoms(rows * vocab);
  const Floats temperature = {0, 1, 0.7F, 1.5F, 1, 1}, top_p = {1, 1, 0.9F, 1, 0.5F, 1};
  const Floats min_p = {0, 0, 0, 0.05F, 0, 0.1F};
  const Ints top_k = {0, 0, 50, 0, 5, 3};
  const Longs seed = {1, 2, 3, 4, 5, 6}, sample_index = {0, 1, 0, 2, 0, 0};
  const Longs output_index = {9, 8, 7, 6, 5, 4};
  Longs expected(rows), ids(rows, -9);
  trtspec::sample(logits.data(), rows, vocab,
                  {temperature.data(), top_k.data(), top_p.data(), min_p.data(), seed.data(),
                   sample_index.data(), output_index.data()},
                  expected.data());
  const PluginPtr plugin = Given().create("KeyedSample");
  enqueue(*plugin,
          {{f32, {rows, vocab}},
           {f32, {rows}},
           {i32, {rows}},
           {f32, {rows}},
           {f32, {rows}},
           {i64, {rows}},
           {i64, {rows}},
           {i64, {rows}}},
          {logits.data(), temperature.data(), top_k.data(), top_p.data(), min_p.data(), seed.data(),
           sample_index.data(), output_index.data()},
          {ids.data()});
  CHECK(ids == expected);
}

void test_accept() {
  const Longs sampled = {5, 7, 9, 4, 1, 3, 8}, tokens = {0, 6, 5, 9, 7, 0, 3};
  const Ints parents = {-1, 0, 0, 2, 2, -1, 0}, row_start = {0, 5, 7};
  constexpr std::int64_t width = 8;
  Ints rows(2 * width, -9), emitted(2, -9), expected_rows(2 * width), expected_emitted(2);
  CHECK_EQ(trtspec::accept(sampled.data(), tokens.data(), parents.data(), row_start.data(), 2,
                           width, expected_rows.data(), expected_emitted.data()),
           -1);
  const PluginPtr plugin = Given().integer("width", width).create("TreeAccept");
  enqueue(*plugin, {{i64, {7}}, {i64, {7}}, {i32, {7}}, {i32, {3}}},
          {sampled.data(), tokens.data(), parents.data(), row_start.data()},
          {rows.data(), emitted.data()});
  CHECK(rows == expected_rows);
  CHECK(emitted == expected_emitted);
  CHECK_EQ(emitted[0], 3);
}

}  // namespace

int main() {
  for (const std::int64_t window : {0, 9}) {
    test_attention(window, 0);
    test_attention(window, 1.5F);
    test_tree_mask(window);
  }
  test_sample();
  test_accept();
  return check_result();
}
