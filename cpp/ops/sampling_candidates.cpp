#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sampling_row.hpp"

namespace trtspec {
namespace {

struct Output {
  std::int64_t* ids;
  float* logprobs;
  std::int64_t k;
};

std::int64_t id_of(const SamplingRow& row, std::int64_t column) {
  return row.token_map != nullptr ? row.token_map[column] : column;
}

void greedy_candidates(const SamplingRow& row, double log_total, SamplingScratch& scratch,
                       const Output& out) {
  select_best(row, out.k, scratch);
  std::sort(scratch.keys.begin(), scratch.keys.end());
  for (std::size_t i = 0; i < scratch.keys.size(); ++i) {
    const std::int64_t column = column_of(scratch.keys[i]);
    out.ids[i] = id_of(row, column);
    out.logprobs[i] =
        static_cast<float>(scaled_logit(row, row.logits[column]) - row.max_scaled - log_total);
  }
}

// The columns among which the k best scores surely are.
std::vector<std::int64_t> contenders(const SamplingRow& row, std::int64_t k,
                                     SamplingScratch& scratch) {
  const std::int64_t blocks = block_count(row.vocab);
  // Rounding of weights, and of scores.
  const double slack = 2 * kRoughError + 1e-15 * std::abs(row.max_scaled);
  std::vector<std::int64_t> columns;
  if (k <= blocks) {
    // As many tokens as blocks counted are at least as good as the k-th best peak of a block.
    std::vector<float> order(scratch.peaks);
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    const double kth = order[static_cast<std::size_t>(k - 1)];
    const auto bound = static_cast<float>(kth * math::exp_of(-slack));
    if (bound > kLeastRough) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        if (scratch.peaks[static_cast<std::size_t>(b)] < bound) continue;
        float weights[kBlock];
        TRTSPEC_DISPATCH(rough_weights, row, scratch.highest, scratch.maxima.data(), false, b,
                         b + 1, scratch.sums.data(), scratch.peaks.data(), weights);
        const std::int64_t end = std::min(row.vocab, (b + 1) * kBlock);
        for (std::int64_t v = b * kBlock; v < end; ++v) {
          if (weights[v % kBlock] >= bound && survives(row, v)) columns.push_back(v);
        }
      }
      return columns;
    }
  }
  // A small vocabulary, or a temperature so low that the weights underflow. Noise spans less than
  // 26.1, so no token that far below the k-th best logit is among the k best scores.
  select_best(row, k, scratch);
  if (scratch.keys.empty()) return columns;
  const std::uint64_t last = *std::max_element(scratch.keys.begin(), scratch.keys.end());
  const double least = scaled_logit(row, row.logits[column_of(last)]) - 26.1 - slack;
  for (std::int64_t v = 0; v < row.vocab; ++v) {
    if (survives(row, v) && scaled_logit(row, row.logits[v]) >= least) columns.push_back(v);
  }
  return columns;
}

void random_candidates(const SamplingRow& row, double log_total, SamplingScratch& scratch,
                       const Output& out) {
  std::vector<TokenScore> scored;
  for (const std::int64_t column : contenders(row, out.k, scratch)) {
    scored.push_back({token_score(row, column), column});
  }
  const auto count = std::min<std::ptrdiff_t>(out.k, static_cast<std::ptrdiff_t>(scored.size()));
  std::partial_sort(scored.begin(), scored.begin() + count, scored.end(),
                    [](const TokenScore& a, const TokenScore& b) {
                      return a.score > b.score || (a.score == b.score && a.column < b.column);
                    });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const TokenScore& token = scored[static_cast<std::size_t>(i)];
    out.ids[i] = id_of(row, token.column);
    out.logprobs[i] = static_cast<float>(token.score - row.max_scaled - log_total);
  }
}

void candidates_of_row(const float* logits, std::int64_t vocab, const SamplingRows& params,
                       std::int64_t r, const std::int64_t* token_map, int threads,
                       SamplingScratch& scratch, const Output& out) {
  std::fill_n(out.ids, out.k, 0);
  std::fill_n(out.logprobs, out.k, -std::numeric_limits<float>::infinity());
  SamplingRow row;
  const RowKind kind = prepare_row(logits, vocab, params, r, threads, scratch, row);
  if (kind == RowKind::invalid) return;
  row.token_map = token_map;

  const std::int64_t blocks = block_count(vocab);
  const auto size = static_cast<std::size_t>(blocks);
  scratch.sums.resize(size);
  scratch.peaks.resize(size);
  for_chunks(blocks, blocks, 512, threads, [&](std::int64_t first, std::int64_t last, int) {
    TRTSPEC_DISPATCH(rough_weights, row, scratch.highest, scratch.maxima.data(),
                     kind == RowKind::greedy, first, last, scratch.sums.data(),
                     scratch.peaks.data(), nullptr);
  });
  double total = 0.0;
  for (const float sum : scratch.sums) total += static_cast<double>(sum);
  if (!(total > 0.0)) return;  // min_p above 1 leaves no survivor
  const double log_total = math::log_of(total);
  if (kind == RowKind::greedy) {
    greedy_candidates(row, log_total, scratch, out);
  } else {
    random_candidates(row, log_total, scratch, out);
  }
}

}  // namespace

void draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                      const SamplingRows& params, const std::int64_t* token_map, std::int64_t k,
                      std::int64_t* ids, float* logprobs) {
  const RowThreads threads = threads_for_rows(rows, vocab);
  std::vector<SamplingScratch> scratch(static_cast<std::size_t>(threads.across_rows));
  base::parallel_for(rows, threads.across_rows, [&](std::int64_t r, int thread) {
    candidates_of_row(logits + r * vocab, vocab, params, r, token_map, threads.within_row,
                      scratch[static_cast<std::size_t>(thread)],
                      {ids + r * k, logprobs + r * k, k});
  });
}

}  // namespace trtspec
