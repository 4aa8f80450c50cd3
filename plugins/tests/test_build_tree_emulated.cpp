// A rollout grown by the kernels in the emulator against the same grown plainly, as
// trtspec/models/rollout.py does: stable sorts, gathers and walks up the tree.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

std::mt19937 random_bits(11);

// Indices of the highest scores, highest first, the lowest index among equals.
std::vector<int> best(const std::vector<float>& scores, std::size_t count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return scores[std::size_t(a)] > scores[std::size_t(b)]; });
  order.resize(count);
  return order;
}

struct Shape {
  int topk, depth, nodes, requests;
};

void grow(const Shape& shape) {
  const int k = shape.topk, requests = shape.requests;
  const int size = k + (shape.depth - 1) * k * k;
  const std::int64_t words = (std::max(k * shape.depth, shape.nodes) + 64) / 64;
  std::vector<std::int64_t> tokens(std::size_t(requests * size), -7);
  std::vector<std::int32_t> parents(tokens.size(), -7);
  std::vector<float> scores(tokens.size(), NAN);
  const trtspec::cuda::TreePool pool{tokens.data(), parents.data(), scores.data(), requests, size};

  // Few distinct logprobs, so that many scores are equal; some above 0, some -inf.
  const float gains[] = {0.0f, 1e-9f, -0.25f, -0.5f, -1.0f, -HUGE_VALF};
  const auto children = [&](std::size_t count, std::vector<std::int64_t>& ids,
                            std::vector<float>& logprobs) {
    ids.resize(count);
    logprobs.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      ids[i] = std::int64_t(random_bits() % 1000);
      logprobs[i] = gains[random_bits() % 6];
    }
  };

  std::vector<std::vector<std::int64_t>> want_tokens(requests), want_above(requests);
  std::vector<std::vector<int>> want_parents(requests);
  std::vector<std::vector<float>> want_scores(requests);
  std::vector<std::int64_t> ids, beam_tokens(std::size_t(requests * k)), ancestors, next;
  std::vector<std::int32_t> index(beam_tokens.size()), lane(beam_tokens.size());
  std::vector<float> logprobs, beam_scores(beam_tokens.size());
  int begin = 0;
  for (int depth = 0; depth < shape.depth; ++depth) {
    const int lanes = depth == 0 ? 1 : k;
    children(std::size_t(requests * lanes * k), ids, logprobs);
    CHECK_EQ(trtspec::cuda::append_candidates(pool, begin, lanes, k, ids.data(), logprobs.data(),
                                              depth == 0 ? nullptr : index.data(),
                                              depth == 0 ? nullptr : beam_scores.data(), nullptr),
             cudaSuccess);
    for (int b = 0; b < requests; ++b) {
      auto& s = want_scores[std::size_t(b)];
      for (int i = 0; i < lanes * k; ++i) {
        const std::size_t from = std::size_t(b * lanes * k + i), row = std::size_t(b * k + i / k);
        const float gain = std::min(logprobs[from], 0.0f);
        want_tokens[std::size_t(b)].push_back(ids[from]);
        want_parents[std::size_t(b)].push_back(depth == 0 ? -1 : index[row]);
        s.push_back(depth == 0 ? gain : beam_scores[row] + gain);
      }
    }
    if (depth + 1 == shape.depth) break;
    next.assign(std::size_t(requests * k * words), -7);
    CHECK_EQ(trtspec::cuda::expand_tree(
                 pool, begin, lanes, k, depth * k, words,
                 depth == 0 ? nullptr : ancestors.data(),
                 {k, beam_tokens.data(), index.data(), lane.data(), beam_scores.data(),
                  next.data()},
                 nullptr),
             cudaSuccess);
    for (int b = 0; b < requests; ++b) {
      const auto& s = want_scores[std::size_t(b)];
      const std::vector<int> chosen = best({s.begin() + begin, s.end()}, std::size_t(k));
      for (int i = 0; i < k; ++i) {
        const std::size_t at = std::size_t(b * k + i);
        const int candidate = begin + chosen[std::size_t(i)];
        CHECK_EQ(index[at], candidate);
        CHECK_EQ(lane[at], chosen[std::size_t(i)] / k);
        CHECK_EQ(beam_tokens[at], want_tokens[std::size_t(b)][std::size_t(candidate)]);
        CHECK_EQ(beam_scores[at], s[std::size_t(candidate)]);
        for (std::int64_t w = 0; w < words; ++w) {
          const std::int64_t above =
              depth == 0 ? 0 : ancestors[std::size_t((b * k + lane[at]) * words + w)];
          const int bit = depth * k + i;
          CHECK_EQ(next[at * std::size_t(words) + std::size_t(w)],
                   above | (w == bit / 64 ? std::int64_t{1} << (bit % 64) : 0));
        }
      }
    }
    ancestors = next;
    begin += lanes * k;
  }

  const std::size_t nodes = std::size_t(shape.nodes);
  std::vector<std::int64_t> kept_tokens(std::size_t(requests) * nodes),
      mask(std::size_t(requests) * (nodes + 1) * std::size_t(words));
  std::vector<std::int32_t> kept_parents(kept_tokens.size());
  std::vector<float> kept_scores(kept_tokens.size());
  CHECK_EQ(trtspec::cuda::keep_best(pool, shape.nodes, kept_tokens.data(), kept_parents.data(),
                                    kept_scores.data(), mask.data(), words, nullptr),
           cudaSuccess);
  for (int b = 0; b < requests; ++b) {
    std::vector<int> kept = best(want_scores[std::size_t(b)], nodes);
    std::sort(kept.begin(), kept.end());
    std::vector<int> node_of(std::size_t(size), -1);
    for (std::size_t n = 0; n < nodes; ++n) node_of[std::size_t(kept[n])] = int(n);
    for (std::size_t n = 0; n < nodes; ++n) {
      const std::size_t candidate = std::size_t(kept[n]), at = std::size_t(b) * nodes + n;
      const int parent = want_parents[std::size_t(b)][candidate];
      const int want = parent < 0 ? -1 : node_of[std::size_t(parent)];
      CHECK(parent < 0 || want >= 0);  // closed under parents
      CHECK_EQ(kept_parents[at], want);
      CHECK_EQ(kept_tokens[at], want_tokens[std::size_t(b)][candidate]);
      CHECK_EQ(kept_scores[at], want_scores[std::size_t(b)][candidate]);
    }
    for (std::size_t row = 0; row <= nodes; ++row) {
      std::vector<std::int64_t> bits(std::size_t(words), 0);
      bits[0] = 1;
      const std::int32_t* const above = kept_parents.data() + std::size_t(b) * nodes;
      for (int n = int(row) - 1; n >= 0; n = above[n]) {
        bits[std::size_t((n + 1) / 64)] |= std::int64_t{1} << ((n + 1) % 64);
      }
      CHECK(std::memcmp(bits.data(),
                        mask.data() + (std::size_t(b) * (nodes + 1) + row) * std::size_t(words),
                        bits.size() * 8) == 0);
    }
  }
}

}  // namespace

int main() {
  for_seeds([](unsigned) {
    for (const Shape& shape : {Shape{1, 5, 5, 3}, Shape{4, 4, 15, 5}, Shape{10, 6, 59, 2},
                               Shape{8, 8, 130, 1}, Shape{3, 1, 2, 1}, Shape{2, 3, 10, 2}}) {
      grow(shape);
    }
  });
  return check_result();
}
