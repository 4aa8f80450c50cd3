// top_k and top_p as a cut in the order of the logits, without sorting the vocabulary.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "sampling_row.hpp"

namespace trtspec {
namespace {

float logit_of(std::uint64_t key) {
  const std::uint32_t order = ~static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

Cut cut_at(std::uint64_t key) { return {logit_of(key), column_of(key)}; }

bool within(const Cut& cut, float logit, std::int64_t column) {
  return logit > cut.logit || (logit == cut.logit && column <= cut.column);
}

// Appends the keys of the tokens with low <= logit <= high that `wanted` takes.
template <class Wanted>
void gather(const SamplingRow& row, float low, float high, SamplingScratch& scratch,
            const Wanted& wanted) {
  const std::int64_t blocks = block_count(row.vocab);
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (scratch.maxima[static_cast<std::size_t>(b)] < low) continue;
    const std::int64_t end = std::min(row.vocab, (b + 1) * kBlock);
    // The columns inside are listed without branches, which would be mispredicted at every other
    // logit.
    std::int64_t inside[kBlock + 1];
    std::size_t count = 0;
    for (std::int64_t v = b * kBlock; v < end; ++v) {
      inside[count] = v;
      count += static_cast<std::size_t>(row.logits[v] >= low) &
               static_cast<std::size_t>(row.logits[v] <= high);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (wanted(inside[i])) scratch.keys.push_back(key_of(row.logits[inside[i]], inside[i]));
    }
  }
}

std::int64_t token_mass(const SamplingRow& row, float logit) {
  const double weight = std::max(token_weight(row, logit), kSmallest);
  return static_cast<std::int64_t>(mass_of<double, std::uint64_t>(weight));
}

// The least share of `total` that a prefix must hold. A prefix is never empty.
std::int64_t mass_wanted(float top_p, std::int64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share)));
}

// The last token of the shortest prefix, in key order, whose mass reaches `wanted`.
Cut prefix_cut(const SamplingRow& row, std::vector<std::uint64_t>& keys, std::int64_t wanted) {
  constexpr std::ptrdiff_t kSmall = 64;
  auto low = keys.begin(), high = keys.end();
  std::int64_t before = 0;
  while (high - low > kSmall) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high);
    std::int64_t mass = 0;
    for (auto key = low; key != middle; ++key) mass += token_mass(row, logit_of(*key));
    if (before + mass >= wanted) {
      high = middle;
    } else {
      before += mass;
      low = middle;
    }
  }
  std::sort(low, high);
  for (auto key = low; key != high; ++key) {
    before += token_mass(row, logit_of(*key));
    if (before >= wanted) return cut_at(*key);
  }
  return cut_at(*(high - 1));
}

// top_p over the whole row: the histogram finds the bucket of weights in which the share is
// reached, and only that bucket's tokens are gathered and ordered.
Cut top_p_cut(const SamplingRow& row, float top_p, int threads, SamplingScratch& scratch) {
  const std::int64_t blocks = block_count(row.vocab);
  scratch.histogram.assign(static_cast<std::size_t>(kBuckets * threads), 0);
  std::int64_t* histogram = scratch.histogram.data();
  for_chunks(blocks, blocks, 512, threads, [&](std::int64_t first, std::int64_t last, int thread) {
    TRTSPEC_DISPATCH(mass_histogram, row, scratch.weights.data(), first, last,
                     histogram + thread * kBuckets);
  });
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < kBuckets; ++i) {
    for (int t = 1; t < threads; ++t) histogram[i] += histogram[t * kBuckets + i];
    total += histogram[i];
  }
  std::int64_t wanted = mass_wanted(top_p, total);
  std::int64_t bucket = kBuckets - 1;
  while (bucket > 0 && histogram[bucket] < wanted) wanted -= histogram[bucket--];

  const auto weight_at = [](std::int64_t i) {
    return std::bit_cast<double>(kSmallestBits + (static_cast<std::uint64_t>(i) << kBucketShift));
  };
  const double slack = 1e-6 * (std::abs(row.max_scaled) + 30.0);
  const auto logit_at = [&](double weight, double margin) {
    const double logit = row.temperature * (row.max_scaled + math::log_of(weight) + margin);
    return static_cast<float>(std::clamp(logit, -3.4e38, 3.4e38));
  };
  scratch.keys.clear();
  gather(row, logit_at(weight_at(bucket), -slack), logit_at(weight_at(bucket + 1), slack), scratch,
         [&](std::int64_t v) {
           const double weight = std::max(token_weight(row, row.logits[v]), kSmallest);
           return static_cast<std::int64_t>(bucket_of<double, std::uint64_t>(weight)) == bucket;
         });
  return prefix_cut(row, scratch.keys, wanted);
}

}  // namespace

std::uint64_t key_of(float logit, std::int64_t column) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 becomes 0
  const std::uint32_t order = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return (static_cast<std::uint64_t>(~order) << 32) | static_cast<std::uint32_t>(column);
}

std::int64_t column_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

void select_best(const SamplingRow& row, std::int64_t k, SamplingScratch& scratch) {
  const auto& maxima = scratch.maxima;
  // At least k tokens are as good as the k-th best block maximum, if there are so many blocks.
  float bound = row.cut.logit;
  if (k <= static_cast<std::int64_t>(maxima.size())) {
    std::vector<float> order(maxima);
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    bound = std::max(bound, order[static_cast<std::size_t>(k - 1)]);
  }
  const auto survivor = [&](std::int64_t v) { return within(row.cut, row.logits[v], v); };
  scratch.keys.clear();
  gather(row, bound, HUGE_VALF, scratch, survivor);
  if (static_cast<std::int64_t>(scratch.keys.size()) > k) {
    std::nth_element(scratch.keys.begin(), scratch.keys.begin() + (k - 1), scratch.keys.end());
    scratch.keys.resize(static_cast<std::size_t>(k));
  }
}

void apply_filters(SamplingRow& row, std::int64_t top_k, float top_p, int threads,
                   SamplingScratch& scratch) {
  const bool few = top_k > 0 && top_k < row.vocab;
  if (few) {
    select_best(row, top_k, scratch);
    row.cut = cut_at(*std::max_element(scratch.keys.begin(), scratch.keys.end()));
  }
  if (!(top_p < 1.0f)) return;
  if (!few) {
    row.cut = top_p_cut(row, top_p, threads, scratch);
    return;
  }
  std::int64_t total = 0;
  for (const std::uint64_t key : scratch.keys) total += token_mass(row, logit_of(key));
  row.cut = prefix_cut(row, scratch.keys, mass_wanted(top_p, total));
}

}  // namespace trtspec
