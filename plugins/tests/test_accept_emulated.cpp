// accept, kv_compact and tree_mask in the emulator against the CPU kernels and the plain rule.
#include <kernels.hpp>
#include <trtspec/acceptance.hpp>
#include <trtspec/kv_compact.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

std::mt19937 random_bits(7);

int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_bits); }

// Requests of up to 100 rows with few distinct tokens, so that walks go deep.
void accept_equals_cpu() {
  for (int round = 0; round < 15; ++round) {
    const int requests = 1 + below(9);
    std::vector<std::int32_t> starts = {0}, parents, contexts, tables;
    std::vector<std::int64_t> tokens, sampled;
    std::vector<std::int32_t> forced;
    std::int64_t width = 0;
    const std::int64_t block_size = 1 + below(20), table_width = 300 / block_size + 1;
    for (int b = 0; b < requests; ++b) {
      const int rows = 1 + below(round % 4 == 0 ? 100 : 12);
      const bool chain = below(3) == 0;
      width = std::max<std::int64_t>(width, rows);
      for (int row = 0; row < rows; ++row) {
        parents.push_back(row == 0 ? -1 : chain ? row - 1 : std::max(0, row - 1 - below(6)));
        tokens.push_back(below(2));
        sampled.push_back(below(2));
      }
      starts.push_back(starts.back() + rows);
      contexts.push_back(below(150));
      forced.push_back(below(12) - 1);
    }
    const std::int32_t* const counts = round % 2 == 0 ? nullptr : forced.data();
    if (round % 3 == 1) sampled[std::size_t(below(int(sampled.size())))] = -1;
    if (round % 5 == 4) parents.back() = 1000;  // the last request may be malformed
    for (std::int64_t i = 0; i < requests * table_width; ++i) tables.push_back(below(1000));
    width += below(3);
    const std::size_t size = std::size_t(requests * width);
    std::vector<std::int32_t> rows_want(size), rows_got(size, -7), count_want(requests),
        count_got(requests, -7);
    const std::int64_t wrong =
        trtspec::accept(sampled.data(), tokens.data(), parents.data(), starts.data(), requests,
                        width, rows_want.data(), count_want.data(), counts);
    std::vector<std::int64_t> emitted(size, -7), src(size, -7), dst(size, -7);
    const trtspec::cuda::AcceptParams params{.sampled = sampled.data(),
                                             .tokens = tokens.data(),
                                             .parents = parents.data(),
                                             .row_start = starts.data(),
                                             .requests = requests,
                                             .width = width,
                                             .accepted_rows = rows_got.data(),
                                             .num_emitted = count_got.data(),
                                             .emitted = emitted.data(),
                                             .src_slots = src.data(),
                                             .dst_slots = dst.data(),
                                             .context_lens = contexts.data(),
                                             .block_tables = tables.data(),
                                             .table_width = table_width,
                                             .block_size = block_size,
                                             .forced = counts};
    CHECK_EQ(trtspec::cuda::accept(params, nullptr), cudaSuccess);
    if (wrong >= 0) {
      CHECK_EQ(wrong, requests - 1);
      CHECK_EQ(count_got[std::size_t(wrong)], 0);
      std::fill_n(rows_want.end() - width, width, -1);
      count_want.back() = 0;
    }
    CHECK(rows_got == rows_want);
    CHECK(count_got == count_want);
    const auto slot = [&](std::int64_t b, std::int64_t position) {
      return tables[std::size_t(b * table_width + position / block_size)] * block_size +
             position % block_size;
    };
    for (std::int64_t b = 0; b < requests; ++b) {
      for (std::int64_t i = 0; i < width; ++i) {
        const std::size_t at = std::size_t(b * width + i);
        const std::int64_t row = rows_want[at];
        const std::int64_t next = i + 1 < width ? rows_want[at + 1] : -1;
        const std::int64_t start = starts[std::size_t(b)];
        CHECK_EQ(emitted[at], row < 0    ? -1
                              : next < 0 ? sampled[std::size_t(start + row)]
                                         : tokens[std::size_t(start + next)]);
        const bool moves = row >= 0 && row != i;
        const std::int64_t context = contexts[std::size_t(b)];
        CHECK_EQ(src[at], moves ? slot(b, context + row) : -1);
        CHECK_EQ(dst[at], moves ? slot(b, context + i) : -1);
      }
    }
  }
}

// Moves that overlap, in rows of every kind of size.
void kv_compact_equals_cpu() {
  for (const std::int64_t row_bytes : {16, 6, 256, 1040, 33}) {
    for (const std::int64_t pairs : {1, 7, 300, 2000}) {
      const std::int64_t slots = 2 * pairs + 3, num_caches = 5;
      std::vector<std::vector<std::uint8_t>> want, got;
      std::vector<void*> want_data, got_data;
      for (std::int64_t c = 0; c < num_caches; ++c) {
        want.emplace_back(std::size_t(slots * row_bytes));
        for (auto& byte : want.back()) byte = std::uint8_t(random_bits());
      }
      got = want;
      for (auto& cache : want) want_data.push_back(cache.data());
      for (auto& cache : got) got_data.push_back(cache.data());
      std::vector<std::int64_t> src(std::size_t(slots), 0), dst;
      std::iota(src.begin(), src.end(), 0);
      dst = src;
      std::shuffle(src.begin(), src.end(), random_bits);
      std::shuffle(dst.begin(), dst.end(), random_bits);
      for (std::size_t i = 0; i < src.size(); i += 5) (i % 2 == 0 ? src : dst)[i] = -1;
      trtspec::kv_compact(want_data.data(), num_caches, row_bytes, slots, src.data(), dst.data(),
                          pairs);
      CHECK_EQ(trtspec::cuda::kv_compact(got_data.data(), num_caches, row_bytes, src.data(),
                                         dst.data(), pairs, nullptr),
               cudaSuccess);
      CHECK(got == want);
    }
  }
  std::int64_t slot = 0;
  CHECK_EQ(trtspec::cuda::kv_compact(nullptr, 0, 16, &slot, &slot,
                                     trtspec::cuda::kMaxCompactPairs + 1, nullptr),
           cudaErrorInvalidValue);
}

void tree_mask_follows_the_rule() {
  constexpr std::int64_t kRows = 12, kWidth = 6, kLength = 90, kWords = 2;
  const std::int32_t starts[] = {0, 5, 9, 10};  // two rows behind
  const std::int32_t contexts[] = {70, 0, 40};
  const bool trees[] = {true, false, true};
  std::int64_t positions[kRows], slots[kRows], mask[kRows * kWords] = {};
  for (std::int64_t t = 0; t < kRows; ++t) {
    slots[t] = t == 7 ? -1 : t;
    positions[t] = t < 5 ? 70 + t / 2 : t < 9 ? t - 5 : 40;
    mask[t * kWords] = 1 + 2 * below(32);
  }
  using trtspec::cuda::MaskKind;
  for (const std::int64_t window : {0, 9}) {
    for (const MaskKind kind : {MaskKind::boolean, MaskKind::f32, MaskKind::bf16, MaskKind::f16}) {
      std::vector<std::uint32_t> out(3 * kWidth * kLength, 0xdddddddd);
      CHECK_EQ(trtspec::cuda::tree_mask({.out = out.data(),
                                         .kind = kind,
                                         .requests = 3,
                                         .rows = kRows,
                                         .width = kWidth,
                                         .length = kLength,
                                         .mask_words = kWords,
                                         .positions = positions,
                                         .slot_mapping = slots,
                                         .query_start = starts,
                                         .context_lens = contexts,
                                         .is_tree = trees,
                                         .tree_mask = mask,
                                         .sliding_window = window},
                                        nullptr),
               cudaSuccess);
      for (std::int64_t i = 0; i < 3 * kWidth * kLength; ++i) {
        const std::int64_t b = i / kLength / kWidth, row = i / kLength % kWidth, p = i % kLength;
        const std::int64_t t = starts[b] + row;
        bool seen = p == 0;
        if (t < starts[b + 1] && slots[t] >= 0) {
          const std::int64_t j = p - contexts[b];
          const bool near = window == 0 || positions[t] - p < window;
          seen = j < 0      ? near
                 : trees[b] ? j < 64 && (mask[t * kWords] >> j & 1) != 0
                            : j <= row && near;
        }
        const auto* bytes = reinterpret_cast<const unsigned char*>(out.data());
        std::uint32_t got = 0;
        const std::size_t size = kind == MaskKind::boolean ? 1 : kind == MaskKind::f32 ? 4 : 2;
        std::memcpy(&got, bytes + std::size_t(i) * size, size);
        const std::uint32_t hidden = kind == MaskKind::f32    ? 0xff800000u
                                     : kind == MaskKind::bf16 ? 0xff80u
                                                              : 0xfc00u;
        CHECK_EQ(got, kind == MaskKind::boolean ? std::uint32_t(seen) : seen ? 0u : hidden);
      }
    }
  }
}

}  // namespace

int main() {
  for_seeds([](unsigned) {
    accept_equals_cpu();
    kv_compact_equals_cpu();
    tree_mask_follows_the_rule();
  });
  return check_result();
}
