// Trees grown by the kernels in the emulator against the same grown by the CPU kernels: every array
// that they write, bit for bit.
#include <kernels.hpp>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

using Longs = std::vector<std::int64_t>;
using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

std::mt19937 random_bits(11);

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Few distinct gains, so that many scores are equal; some above 0, some -inf, some NaN.
void guess(std::size_t count, Longs& tokens, Floats& gains) {
  const float values[] = {0.0f, 1e-9f, -0.25f, -0.5f, -1.0f, -HUGE_VALF, NAN};
  tokens.resize(count);
  gains.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = std::int64_t(random_bits() % 1000);
    gains[i] = values[random_bits() % 7];
  }
}

// `count` of `all` places, rising.
Longs some(std::int64_t count, std::int64_t all) {
  Longs places;
  for (std::int64_t i = 0; i < all; ++i) {
    const auto left = std::int64_t(count) - std::ssize(places);
    if (std::int64_t(random_bits() % unsigned(all - i)) < left) places.push_back(i);
  }
  return places;
}

// What one side writes.
struct Side {
  Longs pool_tokens, tokens, lanes, seen, kept_tokens;
  Ints pool_parents, index, kept_parents;
  Floats pool_scores, kept_scores;
};

struct Shape {
  int topk, depth, nodes, requests;
  bool is_static = false;
};

void grow(const Shape& shape) {
  const std::int64_t k = shape.topk, size = k + (shape.depth - 1) * k * k;
  const std::int64_t words = (k * shape.depth + 63) / 64;
  const auto each = [&](std::int64_t count) { return std::size_t(shape.requests * count); };
  Side sides[2];
  for (Side& s : sides) {
    s.pool_tokens.assign(each(size), -7), s.pool_parents.assign(each(size), -7);
    s.pool_scores.assign(each(size), -7);
    s.kept_tokens.resize(each(shape.nodes)), s.kept_parents.resize(each(shape.nodes));
    s.kept_scores.resize(each(shape.nodes));
  }
  const auto pool = [&](Side& s) {
    return trtspec::TreePool{s.pool_tokens.data(), s.pool_parents.data(), s.pool_scores.data(),
                             shape.requests, size};
  };
  Longs ids, chosen;
  Floats gains;
  trtspec::TreeChildren children{0, 1, k, nullptr, nullptr, nullptr};
  for (int depth = 0;; ++depth) {
    guess(each(children.count()), ids, gains);
    children.tokens = ids.data(), children.gains = gains.data();
    const auto given = [&](const Side& s) {
      trtspec::TreeChildren own = children;
      own.above = depth == 0 ? nullptr : s.index.data();
      return own;
    };
    if (depth + 1 == shape.depth) {
      // Static trees keep any candidates here; parents that are none of them are somewhere.
      chosen = shape.is_static ? some(shape.nodes, size) : Longs();
      const auto tree = [&](Side& s) {
        return trtspec::KeptTree{shape.nodes, shape.is_static ? chosen.data() : nullptr,
                                 s.kept_tokens.data(), s.kept_parents.data(), s.kept_scores.data()};
      };
      trtspec::keep_best(pool(sides[0]), given(sides[0]), tree(sides[0]));
      CHECK_EQ(trtspec::cuda::keep_best(pool(sides[1]), given(sides[1]), tree(sides[1]), nullptr),
               cudaSuccess);
      break;
    }
    chosen = shape.is_static ? some(k, children.count()) : Longs();
    Side next[2];
    const auto beam = [&](int side) {
      Side& s = next[side];
      s.tokens.resize(each(k)), s.lanes.resize(each(k)), s.index.resize(each(k));
      s.seen.resize(each(k * words));
      return trtspec::TreeBeam{k,
                               shape.is_static ? chosen.data() : nullptr,
                               s.tokens.data(),
                               s.index.data(),
                               s.lanes.data(),
                               depth * k,
                               words,
                               depth == 0 ? nullptr : sides[side].seen.data(),
                               s.seen.data()};
    };
    trtspec::expand_tree(pool(sides[0]), given(sides[0]), beam(0));
    CHECK_EQ(trtspec::cuda::expand_tree(pool(sides[1]), given(sides[1]), beam(1), nullptr),
             cudaSuccess);
    for (int side = 0; side < 2; ++side) {
      Side &to = sides[side], &from = next[side];
      to.tokens.swap(from.tokens), to.lanes.swap(from.lanes);
      to.index.swap(from.index), to.seen.swap(from.seen);
    }
    CHECK(same(sides[0].tokens, sides[1].tokens) && same(sides[0].lanes, sides[1].lanes));
    CHECK(same(sides[0].index, sides[1].index) && same(sides[0].seen, sides[1].seen));
    children.begin += children.count();
    children.lanes = k;
  }
  const Side &a = sides[0], &b = sides[1];
  CHECK(same(a.pool_tokens, b.pool_tokens) && same(a.pool_parents, b.pool_parents));
  CHECK(same(a.pool_scores, b.pool_scores));
  CHECK(same(a.kept_tokens, b.kept_tokens) && same(a.kept_parents, b.kept_parents));
  CHECK(same(a.kept_scores, b.kept_scores));
}

// The best `nodes` paths through `topk` tokens of every depth, or a tree of random parents.
void grow_marginals(const Shape& shape) {
  Ints starts = {0}, lanes, ranks;
  for (int depth = 0, width = 1; depth < shape.depth; ++depth) {
    for (int lane = 0; lane < width; ++lane) {
      const int count = shape.is_static ? int(random_bits() % 3) : shape.topk;
      for (int rank = 0; rank < count; ++rank) lanes.push_back(lane), ranks.push_back(rank);
    }
    if (lanes.empty()) lanes.push_back(0), ranks.push_back(0);
    starts.push_back(std::int32_t(lanes.size()));
    width = starts.back() - starts[std::size_t(depth)];
    if (!shape.is_static) width = std::min(width, shape.nodes);
  }
  const auto candidates = std::ssize(lanes);
  const std::int64_t nodes = shape.is_static ? candidates : shape.nodes, count = shape.topk + 3;
  Longs tokens;
  Floats gains;
  guess(std::size_t(shape.requests * shape.depth * count), tokens, gains);
  Longs out[2];
  Ints parents[2];
  Floats scores[2];
  for (int side = 0; side < 2; ++side) {
    const auto size = std::size_t(shape.requests * nodes);
    out[side].resize(size), parents[side].resize(size), scores[side].resize(size);
    const trtspec::MarginalTrees params{shape.requests,
                                        shape.depth,
                                        count,
                                        tokens.data(),
                                        gains.data(),
                                        starts.data(),
                                        lanes.data(),
                                        ranks.data(),
                                        shape.is_static,
                                        nodes,
                                        out[side].data(),
                                        parents[side].data(),
                                        scores[side].data()};
    if (side == 0) {
      trtspec::marginal_trees(params);
      continue;
    }
    std::vector<char> scratch(trtspec::cuda::marginal_trees_workspace(params, candidates), '\xff');
    CHECK_EQ(trtspec::cuda::marginal_trees(params, candidates, scratch.data(), nullptr),
             cudaSuccess);
  }
  CHECK(same(out[0], out[1]) && same(parents[0], parents[1]) && same(scores[0], scores[1]));
}

}  // namespace

int main() {
  for_seeds([](unsigned) {
    for (Shape shape : {Shape{1, 5, 5, 3}, Shape{4, 4, 15, 5}, Shape{10, 6, 59, 2},
                        Shape{8, 8, 130, 1}, Shape{3, 1, 2, 1}, Shape{2, 3, 10, 2}}) {
      for (const bool is_static : {false, true}) {
        shape.is_static = is_static;
        grow(shape);
        grow_marginals(shape);
      }
    }
  });
  // More candidates than a block keeps at hand.
  grow({64, 4, 40, 1});
  grow_marginals({30, 12, 29, 1});
  return check_result();
}
