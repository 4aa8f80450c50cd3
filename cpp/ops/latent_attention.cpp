#include <trtspec/latent_attention.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "latent_attention_kernel.hpp"
#include "cached_rows.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace trtspec {
namespace {

constexpr const char* kOp = "latent_tree_attention";
constexpr double kGrain = 1 << 18;       // multiply-adds that are worth a thread
constexpr std::int64_t kLeastHeads = 6;  // of a unit that shares its row with another thread

void write_caches(const LatentAttentionParams& p) {
  if (p.latent_scale != nullptr) {
    TRTSPEC_DISPATCH(latent_write_kernel, p);
    return;
  }
  const std::size_t element = size_of(p.dtype);
  const auto write = [&](void* cache, const void* from, std::int64_t width) {
    const std::size_t bytes = static_cast<std::size_t>(width) * element;
    for (std::int64_t t = 0; t < p.rows.rows; ++t) {
      if (p.rows.slot_mapping[t] < 0) continue;
      std::memcpy(static_cast<char*>(cache) + std::size_t(p.rows.slot_mapping[t]) * bytes,
                  static_cast<const char*>(from) + std::size_t(t) * bytes, bytes);
    }
  };
  write(p.latent_cache, p.latent, p.rank);
  write(p.key_cache, p.key, p.rope_dim);
}

struct Plan {
  std::vector<LatentUnit> units;
  std::int64_t most_heads = 0;  // (row, head)s of a unit, at most
  double work = 0;
};

void plan_request(const LatentAttentionParams& p, std::int64_t b, std::int64_t unit_rows,
                  std::int64_t parts, Plan* plan) {
  check_blocks(p.rows, kOp, b);
  const std::int64_t first = p.rows.query_start[b];
  const std::int64_t count = p.rows.query_start[b + 1] - first;
  const std::int64_t tiles = (count + unit_rows - 1) / unit_rows;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t from = count * tile / tiles;
    const std::int64_t to = count * (tile + 1) / tiles;
    std::int64_t least = -1;  // what its first row that is no padding sees of whole tiles
    for (std::int64_t i = from; i < to && least < 0; ++i) {
      if (p.rows.slot_mapping[first + i] < 0) continue;
      least = p.rows.context_lens[b] + (p.rows.is_tree[b] ? 0 : i + 1);
    }
    const std::int64_t shared = std::max<std::int64_t>(least, 0) / kLatentTile * kLatentTile;
    plan->work += double((to - from) * p.heads * (2 * p.rank + p.rope_dim)) *
                  double(std::max<std::int64_t>(least, 0) + (to - from));
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t head = p.heads * part / parts;
      const LatentUnit unit{
          b, first + from, to - from, head, p.heads * (part + 1) / parts - head, shared};
      plan->most_heads = std::max(plan->most_heads, unit.rows * unit.heads);
      plan->units.push_back(unit);
    }
  }
}

Plan make_plan(const LatentAttentionParams& p) {
  Plan plan;
  const std::int64_t threads = max_threads();
  const std::int64_t rows = (p.rows.rows + p.rows.requests - 1) / p.rows.requests;
  const auto units = [&](std::int64_t each) {
    return p.rows.requests * ((rows + each - 1) / each);
  };
  // Every thread should find a unit: fewer rows in each, then fewer heads, which reads more often.
  std::int64_t unit_rows = std::max<std::int64_t>(1, kLatentHeads / p.heads);
  while (unit_rows > 1 && units(unit_rows) < threads) unit_rows /= 2;
  std::int64_t parts = 1;
  while (units(unit_rows) * parts < threads && p.heads / (parts + 1) >= kLeastHeads) ++parts;
  for (std::int64_t b = 0; b < p.rows.requests; ++b) plan_request(p, b, unit_rows, parts, &plan);
  return plan;
}

LatentScratch make_layout(const LatentAttentionParams& p, std::int64_t heads) {
  LatentScratch layout{};
  std::int64_t at = 0;
  const auto padded = [](std::int64_t floats) { return (floats + 15) / 16 * 16; };
  const auto take = [&](std::int64_t floats) {
    const std::int64_t from = at;
    at += padded(floats);
    return from;
  };
  layout.query_stride = padded(p.rank + p.rope_dim);
  layout.value_stride = padded(p.rank);
  layout.queries = take(heads * layout.query_stride);
  layout.keys = take(layout.query_stride * kLatentTile);
  layout.values = take(kLatentTile * layout.value_stride);
  layout.scores = take(heads * kLatentTile);
  layout.sums = take(heads * layout.value_stride);
  layout.lanes = take(heads * 16);
  layout.maxima = take(heads);
  layout.size = at + 64;
  return layout;
}

void run_units(const LatentAttentionParams& p, const Plan& plan, const LatentScratch& layout,
               float* scratch, int threads) {
  const LatentUnit* units = plan.units.data();
  const auto count = static_cast<std::int64_t>(plan.units.size());
#if defined(TRTSPEC_HAS_BF16_PRODUCTS)
  const bool in_pairs = p.dtype == DType::bf16 && p.rank % 32 == 0 && p.rope_dim % 32 == 0 &&
                        p.latent_scale == nullptr;
  if (in_pairs && active_isa() >= Isa::avx512_bf16) {
    return avx512_bf16::latent_attention_dot(p, units, count, layout, scratch, threads);
  }
#endif
  TRTSPEC_DISPATCH(latent_attention_kernel, p, units, count, layout, scratch, threads);
}

}  // namespace

void latent_tree_attention(const LatentAttentionParams& p) {
  if (p.rows.rows <= 0) return;
  check_rows(p.rows, kOp);
  if (p.rows.requests > 0) {
    const Plan plan = make_plan(p);  // checks what it reads, so: before anything is written
    write_caches(p);
    const LatentScratch layout = make_layout(p, plan.most_heads);
    const int threads = base::threads_for(plan.work, kGrain);
    const Scratch<float> scratch = make_scratch<float>(threads * layout.size);
    run_units(p, plan, layout, scratch.get(), threads);
  }
  const std::int64_t used = p.rows.requests > 0 ? p.rows.query_start[p.rows.requests] : 0;
  const std::size_t row_bytes = static_cast<std::size_t>(p.heads * p.rank) * size_of(p.dtype);
  std::memset(static_cast<char*>(p.out) + static_cast<std::size_t>(used) * row_bytes, 0,
              static_cast<std::size_t>(p.rows.rows - used) * row_bytes);
}

}  // namespace trtspec
