// One row of logits made ready: its block maxima, whether it can be sampled, and its filters' cut.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.hpp"
#include "sampling_kernel.hpp"
#include "trtspec/sampling.hpp"

namespace trtspec {

// Memory that the rows handled by one thread share.
struct SamplingScratch {
  std::vector<float> maxima;
  float highest;  // of them
  std::vector<double> weights;
  std::vector<float> sums, peaks;
  std::vector<std::int64_t> histogram;
  std::vector<std::uint64_t> keys;
};

enum class RowKind { invalid, greedy, random };

// Checks row `r` and fills `row` and scratch.maxima; for a random row also scratch.weights and the
// cut of top_k and top_p. `threads` may share the passes.
RowKind prepare_row(const float* logits, std::int64_t vocab, const SamplingRows& params,
                    std::int64_t r, int threads, SamplingScratch& scratch, SamplingRow& row);

// A key orders tokens by logit, highest first, and by column among equal logits, lowest first.
std::uint64_t key_of(float logit, std::int64_t column);
std::int64_t column_of(std::uint64_t key);

// Leaves in scratch.keys the keys of the k best tokens of a row with finite logits within `cut`, in
// no order; fewer if there are fewer.
void select_best(const SamplingRow& row, std::int64_t k, SamplingScratch& scratch);

// Narrows row.cut to the k best tokens, then to the smallest set of best ones with a share top_p of
// their mass.
void apply_filters(SamplingRow& row, std::int64_t top_k, float top_p, int threads,
                   SamplingScratch& scratch);

inline std::int64_t block_count(std::int64_t vocab) { return (vocab + kBlock - 1) / kBlock; }

// How the rows of a call are spread: over threads if there are enough, else each over all threads.
struct RowThreads {
  int across_rows;
  int within_row;
};

inline RowThreads threads_for_rows(std::int64_t rows, std::int64_t vocab) {
  const double tokens = static_cast<double>(rows) * static_cast<double>(vocab);
  const int threads = base::threads_for(tokens, 32768.0);
  return rows >= threads ? RowThreads{threads, 1} : RowThreads{1, threads};
}

// body(first, last, thread) for chunks of the blocks [0, blocks). `work` of them need work, and a
// thread is worth waking for `grain` of those; with fewer, one thread does it all.
template <class Body>
void for_chunks(std::int64_t blocks, std::int64_t work, std::int64_t grain, int threads,
                const Body& body) {
  constexpr std::int64_t kChunk = 256;
  if (threads <= 1 || work < 2 * grain) return body(std::int64_t{0}, blocks, 0);
  base::parallel_for((blocks + kChunk - 1) / kChunk, threads, [&](std::int64_t i, int thread) {
    const std::int64_t first = i * kChunk;
    body(first, first + kChunk < blocks ? first + kChunk : blocks, thread);
  });
}

}  // namespace trtspec
