// Attention by AMX against plain loops; where the processor has none, on the emulator of its
// instructions. All else about attention is tested through paged_tree_attention.
#include <cmath>
#include <cstring>
#include <vector>

#include "amx_emulator.hpp"
#include "attention_kernel.hpp"
#include "check.hpp"
#include "sample_values.hpp"
#include "scratch.hpp"

namespace {

using trtspec::bf16;

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads, kBlockSize = 16;

// Rows of `dim` elements as bfloat16 or, if there are scales, 8 bits times that of the row.
struct Cache {
  std::int64_t dim;
  std::vector<bf16> whole;
  std::vector<std::int8_t> eight;
  std::vector<float> scales;

  Cache(std::int64_t rows, std::int64_t dim, std::size_t seed, bool is_scaled) : dim(dim) {
    for (std::int64_t i = 0; i < rows * dim; ++i) {
      const float x = value(std::size_t(i) + seed);
      whole.push_back(rounded(x));
      eight.push_back(std::int8_t(std::lrint(100 * x)));
    }
    for (std::int64_t i = 0; is_scaled && i < rows; ++i)
      scales.push_back(0.01f + 1e-4f * float(i % 7));
  }

  void* data() const {
    return const_cast<void*>(scales.empty() ? static_cast<const void*>(whole.data())
                                            : eight.data());
  }

  float* scale_data() const { return scales.empty() ? nullptr : const_cast<float*>(scales.data()); }

  double operator[](std::int64_t i) const {
    if (scales.empty()) return wide(whole[std::size_t(i)]);
    return double(eight[std::size_t(i)]) * scales[std::size_t(i / dim)];
  }
};

// A request whose rows are causal, behind `context` committed tokens.
struct Request {
  std::int64_t rows, context, dim;
  std::vector<bf16> queries;
  Cache keys, values;

  Request(std::int64_t rows, std::int64_t context, std::int64_t dim, bool is_scaled = false)
      : rows(rows),
        context(context),
        dim(dim),
        keys(blocks() * kBlockSize * kKvHeads, dim, 70, is_scaled),
        values(blocks() * kBlockSize * kKvHeads, dim, 900, is_scaled) {
    for (std::int64_t i = 0; i < rows * kHeads * dim; ++i) {
      queries.push_back(rounded(value(std::size_t(i) + 3)));
    }
  }

  std::int64_t blocks() const { return (context + rows + kBlockSize - 1) / kBlockSize; }

  // Rows [first, first + count) as a unit of their own.
  std::vector<bf16> attend(std::int64_t first, std::int64_t count) const {
    std::vector<std::int32_t> table;
    for (std::int64_t i = 0; i < blocks(); ++i) table.push_back(std::int32_t(i));
    std::vector<trtspec::AttentionRow> seen;
    for (std::int64_t r = 0; r < rows; ++r) {
      seen.push_back({0, context + r + 1, nullptr, context + r + 1});
    }
    std::vector<bf16> out(std::size_t(rows * kHeads * dim));
    trtspec::AttentionParams params{};
    params.q = queries.data();
    params.q_stride = kHeads * dim;
    params.k_cache = keys.data();
    params.v_cache = values.data();
    params.k_scale = keys.scale_data();
    params.v_scale = values.scale_data();
    params.out = out.data();
    params.dtype = trtspec::DType::bf16;
    params.rows = rows;
    params.requests = 1;
    params.heads = kHeads;
    params.kv_heads = kKvHeads;
    params.head_dim = dim;
    params.num_blocks = params.table_width = blocks();
    params.block_size = kBlockSize;
    params.block_tables = table.data();
    params.scale = scale();
    const std::int64_t end = context + first + count;
    const trtspec::AttentionUnit unit{0, 0, kKvHeads, first, count, 0, end, first, -1};
    const std::int64_t heads = count * kHeads, tile = trtspec::kKeyTile;
    trtspec::AttentionScratch layout{};
    layout.score_stride = (context + rows + 31) / 16 * 16;
    layout.keys = layout.queries + heads * dim;
    layout.values = layout.keys + dim * tile;
    layout.tile_scores = layout.values + tile * dim;
    layout.sums = layout.tile_scores + heads * tile;
    layout.results = layout.sums + heads * dim;
    layout.scores = layout.results + heads * dim;
    layout.size = layout.scores + heads * layout.score_stride;
    const auto scratch = trtspec::make_scratch<float>(layout.size);
    trtspec::amx::attention_amx(params, seen.data(), &unit, 1, layout, {}, scratch.get(), 1);
    return {out.begin() + first * kHeads * dim, out.begin() + (first + count) * kHeads * dim};
  }

  double scale() const { return 1.0f / std::sqrt(float(dim)); }

  double expected(std::int64_t row, std::int64_t head, std::int64_t d) const {
    double total = 0, sum = 0;
    for (std::int64_t i = 0; i < context + row + 1; ++i) {
      const std::int64_t key = (i * kKvHeads + head / kGroup) * dim;
      double score = 0;
      for (std::int64_t e = 0; e < dim; ++e) {
        score += wide(queries[std::size_t((row * kHeads + head) * dim + e)]) * keys[key + e];
      }
      const double weight = std::exp(score * scale());
      total += weight;
      sum += weight * values[key + d];
    }
    return sum / total;
  }
};

void check_request(const Request& request) {
  const std::vector<bf16> got = request.attend(0, request.rows);
  const std::int64_t width = kHeads * request.dim;
  for (std::int64_t r = 0; r < request.rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      const double want = request.expected(r, i / request.dim, i % request.dim);
      CHECK_NEAR(wide(got[std::size_t(r * width + i)]), want, 0.004 * std::fabs(want) + 1e-4);
    }
    // The bits of a row computed alone.
    const std::vector<bf16> alone = request.attend(r, 1);
    CHECK(std::memcmp(alone.data(), got.data() + r * width, sizeof(bf16) * std::size_t(width)) ==
          0);
  }
}

}  // namespace

int main() {
  if (!amx_emulator::can_run_kernels()) return 0;
  // (row, head)s of a part of a tile, of one and two tiles and of a block more; keys of a tile, of
  // a part of one, and of several.
  check_request(Request(1, 0, 32));
  check_request(Request(3, 20, 64));
  check_request(Request(8, 56, 64));
  check_request(Request(12, 130, 32));
  check_request(Request(17, 67, 128));
  check_request(Request(3, 20, 64, true));
  check_request(Request(17, 67, 128, true));
  return check_result();
}
