#include <trtspec/draft_batch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "check.hpp"
#include "trees.hpp"

namespace {

using trtspec::DraftBatch;
using trtspec::TreeView;
using trtspec::test::Tree;
using Tokens = std::vector<std::int64_t>;
using Nodes = std::vector<std::int32_t>;
using Scores = std::vector<float>;
using Sources = std::vector<std::uint8_t>;

constexpr float kNever = -std::numeric_limits<float>::infinity();
const Tree kTree = {{10, 11, 12}, {-1, 0, -1}, {-1, -3, -2}};

Scores scores_of(TreeView tree) { return {tree.scores.begin(), tree.scores.end()}; }

DraftBatch batch_of(const std::vector<Tree>& trees) {
  DraftBatch drafts;
  for (const Tree& tree : trees) drafts.append(tree);
  return drafts;
}

// The nodes and the scores of both are the same.
bool equal(TreeView a, TreeView b) { return a == b && scores_of(a) == scores_of(b); }

DraftBatch merged(const DraftBatch& one, const DraftBatch& other) {
  const DraftBatch* both[] = {&one, &other};
  return DraftBatch::merge(both, Sources{0, 1});
}

std::set<Tokens> paths(TreeView tree) {
  std::set<Tokens> all;
  for (std::int64_t node = 0; node < tree.size(); ++node) {
    Tokens tokens;
    for (const std::int32_t i : tree.path(node)) tokens.push_back(tree.tokens[std::size_t(i)]);
    all.insert(tokens);
  }
  return all;
}

void requests_keep_their_nodes() {
  CHECK_EQ(DraftBatch().size(), 0u);
  CHECK_EQ(DraftBatch(2).size(), 2u);
  const DraftBatch drafts = batch_of({kTree, {}, kTree});
  CHECK_EQ(drafts.size(), 3u);
  CHECK(equal(drafts[0], kTree) && drafts[1].empty() && equal(drafts[2], kTree));
  const DraftBatch picked = drafts.pick(Tokens{1, -1, 0});
  CHECK_EQ(picked.size(), 3u);
  CHECK(picked[0].empty() && picked[1].empty() && equal(picked[2], kTree));
}

void what_does_not_fit_is_refused() {
  CHECK_THROWS(batch_of({{{1, 2}, {-1}}}));
  CHECK_THROWS(batch_of({{{1}, {0}}}));
  CHECK_THROWS(batch_of({{{1, 2, 3}, {-1, 2, 0}}}));
  CHECK_THROWS(batch_of({{{1}, {-2}}}));
  CHECK_THROWS(batch_of({{{1}, {-1}, {0.0f, 0.0f}}}));
  const DraftBatch drafts = batch_of({kTree, {}});
  for (const std::int64_t place : {-2, 2}) CHECK_THROWS(drafts.pick(Tokens{place}));
  CHECK_THROWS(drafts.best(Tokens{1}));
  CHECK_THROWS(drafts.calibrated(Scores(20), 20, std::vector<double>{1.0}));
  CHECK_THROWS(merged(drafts, batch_of({kTree})));
  DraftBatch cut;
  CHECK_THROWS(cut.append_best(Tree{{1}, {-1}}, {{}, 1, 1}));  // best by what?
}

void without_scores_nodes_are_as_likely_as_not() {
  const DraftBatch drafts = batch_of({{kTree.tokens, kTree.parents}});
  const float half = std::log(0.5f);
  CHECK(scores_of(drafts[0]) == (Scores{half, 2 * half, half}));
}

void the_best_within_a_cut() {
  const auto cut = [](const Tree& tree, const Tokens& ends, std::int64_t depth,
                      std::int64_t nodes) {
    DraftBatch drafts;
    drafts.append_best(tree, {ends, depth, nodes});
    return drafts;
  };
  CHECK(equal(cut(kTree, {}, 9, 9)[0], kTree));
  CHECK(equal(cut(kTree, {}, 9, 2)[0], Tree{{10, 12}, {-1, -1}, {-1, -2}}));
  CHECK(equal(cut(kTree, {}, 1, 9)[0], Tree{{10, 12}, {-1, -1}, {-1, -2}}));
  CHECK(equal(cut(kTree, {10}, 9, 9)[0], Tree{{12}, {-1}, {-2}}));
  CHECK(cut(kTree, {}, 9, 0)[0].empty() && cut(kTree, {}, 0, 9)[0].empty());
  // Of equals the earlier; excluded ones never.
  const Tree ties = {{1, 2, 3, 4}, {-1, -1, 0, 1}, {-1, -1, kNever, -1}};
  CHECK(equal(cut(ties, {}, 9, 2)[0], Tree{{1, 2}, {-1, -1}, {-1, -1}}));
  CHECK(equal(cut(ties, {}, 9, 9)[0], Tree{{1, 2, 4}, {-1, -1, 1}, {-1, -1, -1}}));
}

void the_best_of_a_batch() {
  const Tree other = {{7, 8}, {-1, 0}, {-1, -1.5}};
  const DraftBatch drafts = batch_of({kTree, {}, other});
  const DraftBatch best = drafts.best(Tokens{1, 5, 9});
  CHECK(equal(best[0], Tree{{10}, {-1}, {-1}}) && best[1].empty() && equal(best[2], other));
  // By score over all requests; the first of equals.
  const Tokens sizes[] = {{0, 0, 0}, {1, 0, 0}, {1, 0, 1}, {1, 0, 2}, {2, 0, 2}, {3, 0, 2}};
  for (std::size_t count = 0; count < std::size(sizes); ++count) {
    const DraftBatch likely = drafts.likeliest(std::int64_t(count));
    const DraftBatch expected = drafts.best(sizes[count]);
    for (std::size_t i = 0; i < 3; ++i) CHECK(equal(likely[i], expected[i]));
  }
}

Sources sources_of(TreeView tree) { return {tree.sources.begin(), tree.sources.end()}; }

void nodes_keep_their_source() {
  const DraftBatch one = batch_of({kTree, {}});
  const DraftBatch other = batch_of({{{12, 10, 13}, {-1, -1, 0}, {-1, -4, -5}}, kTree});
  CHECK(sources_of(one[0]) == (Sources{0, 0, 0}));
  const DraftBatch* batches[] = {&other, &one};
  const DraftBatch both = DraftBatch::merge(batches, Sources{7, 3});
  CHECK(both[0].tokens[3] == 11 && sources_of(both[0]) == (Sources{7, 7, 7, 3}));
  CHECK(sources_of(both[1]) == (Sources{7, 7, 7}));
  CHECK_THROWS(DraftBatch::merge(batches, Sources{7}));
  CHECK_THROWS(batch_of({}).append({kTree.tokens, kTree.parents, {}, Sources{1}}));
  CHECK(sources_of(both.best(Tokens{2, 3})[0]) == (Sources{7, 7}));
  CHECK(sources_of(both.pick(Tokens{1, 0})[1]) == sources_of(both[0]));
  CHECK(sources_of(both.likeliest(6)[0]) == (Sources{7, 7, 3}));
  const std::vector<double> exponents = {1.0, 1.0};
  CHECK(sources_of(both.calibrated(Scores(20, -1.0F), 10, exponents)[0]) == sources_of(both[0]));
  // Another tree of the same request has those of its paths; 10 under 12 is not a path of `both`.
  const DraftBatch shaped = batch_of({{{10, 11, 12, 10, 11}, {-1, 0, -1, 2, 3}}, {}});
  const std::uint8_t none = TreeView::kNoSource;
  CHECK(sources_of(shaped.attributed(both)[0]) == (Sources{7, 3, 7, none, none}));
  CHECK_THROWS(shaped.attributed(batch_of({kTree})));
  const auto counts = both[0].by_source(Tokens{0, 2, 4});  // 10, then 11
  CHECK_EQ(counts.size(), 8u);
  CHECK(counts[7].drafted == 3 && counts[7].accepted == 1);
  CHECK(counts[3].drafted == 1 && counts[3].accepted == 1 && counts[0].drafted == 0);
  CHECK(shaped.attributed(both)[0].by_source(Tokens{0, 3, 4})[7].accepted == 1);
}

void unions() {
  const DraftBatch one = batch_of({kTree, {}});
  const DraftBatch other = batch_of({{{12, 10, 13}, {-1, -1, 0}, {-1, -4, -5}}, kTree});
  const DraftBatch both = merged(one, other);
  CHECK(equal(both[0], Tree{{10, 11, 12, 13}, {-1, 0, -1, 2}, {-1, -3, -1, -5}}));
  CHECK(equal(both[1], kTree));
  CHECK_EQ(DraftBatch::merge({}, {}).size(), 0u);
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const Tree a = trtspec::test::random_tree(rng, 30, 4);
    const Tree b = trtspec::test::random_tree(rng, 30, 4);
    const DraftBatch made = merged(batch_of({a}), batch_of({b}));
    std::set<Tokens> wanted = paths(a);
    wanted.merge(paths(b));
    CHECK(paths(made[0]) == wanted);
    CHECK_EQ(std::size_t(made[0].size()), wanted.size());  // each path once
  }
}

void other_scores() {
  // Nodes are drafted by chances of 1 and 1/2: levels 0 and 9.
  const Tree tree = {{1, 2}, {-1, 0}, {0, std::log(0.5f)}};
  Scores gains(40, 0.0f);
  gains[0] = -1;
  gains[20 + 9] = -3;
  const DraftBatch drafts = batch_of({tree, tree}).calibrated(gains, 20, std::vector{1.0, 2.0});
  CHECK(scores_of(drafts[0]) == (Scores{-1, -4}) && scores_of(drafts[1]) == (Scores{-2, -8}));
  CHECK(drafts[0] == tree.view());
}

}  // namespace

int main() {
  requests_keep_their_nodes();
  what_does_not_fit_is_refused();
  without_scores_nodes_are_as_likely_as_not();
  the_best_within_a_cut();
  the_best_of_a_batch();
  unions();
  nodes_keep_their_source();
  other_scores();
  return check_result();
}
