#include "trtspec/sampling.hpp"

#include <algorithm>
#include <vector>

#include "sampling_row.hpp"

namespace trtspec {
namespace {

// The lowest column that holds the highest logit.
std::int64_t first_highest(const SamplingRow& row, const std::vector<float>& maxima) {
  const float highest = static_cast<float>(row.max_scaled);  // the scale of a greedy row is 1
  std::int64_t column = 0;
  for (const float maximum : maxima) {
    if (maximum == highest) break;
    column += kBlock;
  }
  while (row.logits[column] != highest) ++column;
  return column;
}

bool better(const TokenScore& a, const TokenScore& b) {
  if (a.column < 0 || b.column < 0) return a.column >= 0;
  return a.score > b.score || (a.score == b.score && a.column < b.column);
}

std::int64_t sample_row(const float* logits, std::int64_t vocab, const SamplingRows& params,
                        std::int64_t r, int threads, SamplingScratch& scratch) {
  SamplingRow row;
  switch (prepare_row(logits, vocab, params, r, threads, scratch, row)) {
    case RowKind::invalid: return -1;
    case RowKind::greedy: return first_highest(row, scratch.maxima);
    case RowKind::random: break;
  }
  std::vector<TokenScore> best(static_cast<std::size_t>(threads), TokenScore{0.0, -1});
  const std::int64_t blocks = block_count(vocab);
  const std::int64_t live = std::count_if(scratch.maxima.begin(), scratch.maxima.end(),
                                          [&](float maximum) { return maximum >= row.cut.logit; });
  for_chunks(blocks, live, 2048, threads, [&](std::int64_t first, std::int64_t last, int thread) {
    const TokenScore found = TRTSPEC_DISPATCH(noise_argmax, row, scratch.maxima.data(),
                                              scratch.weights.data(), first, last);
    auto& mine = best[static_cast<std::size_t>(thread)];
    if (better(found, mine)) mine = found;
  });
  for (const TokenScore& other : best) {
    if (better(other, best[0])) best[0] = other;
  }
  return best[0].column;
}

}  // namespace

void sample(const float* logits, std::int64_t rows, std::int64_t vocab, const SamplingRows& params,
            std::int64_t* ids) {
  const RowThreads threads = threads_for_rows(rows, vocab);
  std::vector<SamplingScratch> scratch(static_cast<std::size_t>(threads.across_rows));
  base::parallel_for(rows, threads.across_rows, [&](std::int64_t r, int thread) {
    ids[r] = sample_row(logits + r * vocab, vocab, params, r, threads.within_row,
                        scratch[static_cast<std::size_t>(thread)]);
  });
}

void gumbel_noise(std::int64_t seed, std::int64_t sample_index, std::int64_t output_index,
                  const std::int64_t* token_ids, std::int64_t count, double* noise) {
  const NoiseStream stream = noise_stream(seed, sample_index, output_index);
  for (std::int64_t i = 0; i < count; ++i) {
    noise[i] = math::gumbel_of(noise_word(stream, token_ids[i]));
  }
}

}  // namespace trtspec
