// The growth of draft trees against values written by hand.
#include <trtspec/tree_levels.hpp>

#include <limits>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::DraftNodes;
using trtspec::Levels;
using trtspec::MarginalTree;
using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr float kNone = -std::numeric_limits<float>::infinity();

void test_best_scores() {
  const Floats scores = {-2, -1, kNone, -1, -0.5F, kNone};
  CHECK(trtspec::best_scores(scores, 4) == (Ints{4, 1, 3, 0}));
  CHECK(trtspec::best_scores(scores, 9) == (Ints{4, 1, 3, 0, 2, 5}));
}

void test_dynamic_levels() {
  const Levels levels({.topk = 2, .num_steps = 3, .num_draft_tokens = 5});
  CHECK(levels.branching() == (Ints{2, 2, 2}));
  CHECK(levels.widths() == (Ints{2, 2}));
  CHECK(levels.beam(1, Floats{-3, -1, -2, -1}) == (Ints{1, 3}));
  CHECK(levels.kept(Floats{-1, -2, -1.5F, -9, -2, -1}) == (Ints{0, 1, 2, 5}));
}

void test_static_levels() {
  // [0], [2], [0, 0], [2, 1], [0, 0, 0]
  const Levels levels({.topk = 3,
                       .num_steps = 3,
                       .num_draft_tokens = 6,
                       .choices = {{0}, {2}, {0, 0}, {2, 1}, {0, 0, 0}}});
  CHECK(levels.branching() == (Ints{3, 2, 1}));
  CHECK(levels.widths() == (Ints{2, 1}));
  CHECK(levels.beam(0, Floats{-9, -1, -1}) == (Ints{0, 2}));  // whatever they score
  CHECK(levels.beam(1, Floats{-9, -1, -1, -1}) == (Ints{0}));
  // The pool: 3 of the root, 2 of each of the 2 fed, 1 of the one fed.
  CHECK(levels.kept(Floats(8, 0.0F)) == (Ints{0, 2, 3, 6, 7}));
}

void test_cut() {
  const DraftNodes pool{{10, 11, 12, 13, 14}, {-1, -1, 1, 1, 3}, {-1, -2, -3, -4, -5}};
  const DraftNodes nodes = pool.cut(Ints{1, 3, 4});
  CHECK(nodes.tokens == (Ints{11, 13, 14}));
  CHECK(nodes.parents == (Ints{-1, 0, 1}));
  CHECK(nodes.scores == (Floats{-2, -4, -5}));
}

void test_marginal_chain() {
  const MarginalTree tree({.topk = 1, .num_steps = 3, .num_draft_tokens = 4});
  CHECK_EQ(tree.count(), 1);
  const DraftNodes nodes = tree.grow(Ints{5, 6, 7}, Floats{-1, -2, -0.5F});
  CHECK(nodes.tokens == (Ints{5, 6, 7}));
  CHECK(nodes.parents == (Ints{-1, 0, 1}));
  CHECK(nodes.scores == (Floats{-1, -3, -3.5F}));
}

void test_marginal_tree() {
  // The 4 best of all paths through the 2 best tokens of each of 2 depths.
  const MarginalTree tree({.topk = 2, .num_steps = 2, .num_draft_tokens = 5});
  CHECK_EQ(tree.count(), 2);
  const DraftNodes nodes = tree.grow(Ints{5, 6, 7, 8}, Floats{-1, -2, -0.5F, -3});
  CHECK(nodes.tokens == (Ints{5, 6, 7, 7}));
  CHECK(nodes.parents == (Ints{-1, -1, 0, 1}));
  CHECK(nodes.scores == (Floats{-1, -2, -1.5F, -2.5F}));
}

void test_marginals_of_a_static_tree() {
  const MarginalTree tree(
      {.topk = 2, .num_steps = 2, .num_draft_tokens = 4, .choices = {{0}, {1}, {1, 1}}});
  CHECK_EQ(tree.count(), 2);
  const DraftNodes nodes = tree.grow(Ints{5, 6, 7, 8}, Floats{-1, -2, -0.5F, -3});
  CHECK(nodes.tokens == (Ints{5, 6, 8}));
  CHECK(nodes.parents == (Ints{-1, -1, 1}));
  CHECK(nodes.scores == (Floats{-1, -2, -5}));
}

}  // namespace

int main() {
  test_best_scores();
  test_dynamic_levels();
  test_static_levels();
  test_cut();
  test_marginal_chain();
  test_marginal_tree();
  test_marginals_of_a_static_tree();
  return check_result();
}
