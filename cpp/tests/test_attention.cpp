// paged_tree_attention without torch: a chain, the same as tree nodes, and what it refuses.
#include <trtspec/attention.hpp>
#include <trtspec/isa.hpp>

#include <cmath>
#include <cstring>
#include <vector>

#include "check.hpp"

namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kDim = 24;
constexpr std::int64_t kBlock = 8;
constexpr std::int64_t kRow = kKvHeads * kDim;

float value(std::size_t i) { return std::sin(float(i) * 1.7f) + 0.3f * std::cos(float(i) * 0.9f); }

// One request of `rows` rows after `context` tokens, in blocks 3, 1, 0, 2.
struct Call {
  std::int64_t rows;
  std::int32_t context;
  std::vector<std::int64_t> mask;  // empty: causal
  std::vector<float> k_cache = std::vector<float>(4 * kBlock * kRow, NAN);
  std::vector<float> v_cache = k_cache;
  std::vector<std::int32_t> table = {3, 1, 0, 2};

  std::size_t slot(std::int64_t position) const {
    return std::size_t(table[std::size_t(position / kBlock)]) * kBlock +
           std::size_t(position % kBlock);
  }

  std::vector<float> run() {
    std::vector<float> q(std::size_t(rows * kHeads * kDim));
    std::vector<float> k(std::size_t(rows * kRow));
    std::vector<float> v(k.size());
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = value(i);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = value(i + 1000);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = value(i + 3000);
    for (std::int64_t p = 0; p < context; ++p) {
      for (std::int64_t i = 0; i < kRow; ++i) {
        k_cache[slot(p) * kRow + std::size_t(i)] = value(std::size_t(p * kRow + i) + 5000);
        v_cache[slot(p) * kRow + std::size_t(i)] = value(std::size_t(p * kRow + i) + 9000);
      }
    }
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < rows; ++t) {
      positions.push_back(context + t);
      slots.push_back(std::int64_t(slot(context + t)));
    }
    const std::int32_t query_start[] = {0, std::int32_t(rows)};
    const bool is_tree[] = {!mask.empty()};
    const std::vector<std::int64_t> no_mask(std::size_t(rows), 0);
    std::vector<float> out(q.size());
    trtspec::paged_tree_attention({
        .q = q.data(),
        .k = k.data(),
        .v = v.data(),
        .q_stride = kHeads * kDim,
        .k_stride = kRow,
        .v_stride = kRow,
        .k_cache = k_cache.data(),
        .v_cache = v_cache.data(),
        .out = out.data(),
        .dtype = trtspec::DType::f32,
        .rows = rows,
        .requests = 1,
        .heads = kHeads,
        .kv_heads = kKvHeads,
        .head_dim = kDim,
        .num_blocks = 4,
        .block_size = kBlock,
        .table_width = std::int64_t(table.size()),
        .mask_words = 1,
        .positions = positions.data(),
        .slot_mapping = slots.data(),
        .block_tables = table.data(),
        .query_start = query_start,
        .context_lens = &context,
        .is_tree = is_tree,
        .tree_mask = mask.empty() ? no_mask.data() : mask.data(),
        .scale = 0.2f,
        .sliding_window = 0,
    });
    return out;
  }
};

// Attention of the last row of a causal call, from the caches it left.
void check_last_row(const Call& call, const std::vector<float>& out) {
  const std::int64_t t = call.rows - 1;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const std::int64_t kv = h / (kHeads / kKvHeads);
    std::vector<double> weights;
    double total = 0;
    for (std::int64_t p = 0; p < call.context + call.rows; ++p) {
      double score = 0;
      for (std::int64_t d = 0; d < kDim; ++d) {
        score += double(value(std::size_t((t * kHeads + h) * kDim + d))) *
                 double(call.k_cache[call.slot(p) * kRow + std::size_t(kv * kDim + d)]);
      }
      weights.push_back(std::exp(score * 0.2));
      total += weights.back();
    }
    for (std::int64_t d = 0; d < kDim; ++d) {
      double want = 0;
      for (std::size_t p = 0; p < weights.size(); ++p) {
        const std::size_t row = call.slot(std::int64_t(p)) * kRow;
        want += weights[p] / total * double(call.v_cache[row + std::size_t(kv * kDim + d)]);
      }
      CHECK_NEAR(out[std::size_t((t * kHeads + h) * kDim + d)], want, 1e-5);
    }
  }
}

}  // namespace

int main() {
  using trtspec::Isa;
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (isa > trtspec::detected_isa()) continue;
    trtspec::set_isa(isa);
    Call causal{5, 19, {}};
    const std::vector<float> chain = causal.run();
    check_last_row(causal, chain);
    Call tree{5, 19, {1, 3, 7, 15, 31}};
    const std::vector<float> nodes = tree.run();
    CHECK(std::memcmp(chain.data(), nodes.data(), chain.size() * sizeof(float)) == 0);
    Call single{1, 0, {}};
    check_last_row(single, single.run());
  }
  Call beyond{2, 19, {1, std::int64_t(1) << 40}};
  CHECK_THROWS(beyond.run());
  Call missing{2, 19, {}};
  missing.table[1] = 4;
  missing.k_cache.resize(5 * kBlock * kRow);
  missing.v_cache.resize(5 * kBlock * kRow);
  CHECK_THROWS(missing.run());
  return check_result();
}
