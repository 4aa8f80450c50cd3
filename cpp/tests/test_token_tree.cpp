#include <trtspec/token_tree.hpp>

#include <algorithm>
#include <random>
#include <set>

#include "check.hpp"

namespace {

using trtspec::TokenTree;
using Tokens = std::vector<std::int64_t>;
using Nodes = std::vector<std::int32_t>;

//  root - 0 - 1 - 3
//    \      \ 2
//     4 - 5
const TokenTree& small() {
  static const TokenTree tree({10, 11, 12, 13, 20, 11}, {-1, 0, 0, 1, -1, 4});
  return tree;
}

TokenTree random_tree(std::mt19937& rng, int max_nodes, int vocab) {
  const int size = int(rng() % unsigned(max_nodes + 1));
  Tokens tokens;
  Nodes parents;
  for (int i = 0; i < size; ++i) {
    tokens.push_back(std::int64_t(rng() % unsigned(vocab)));
    parents.push_back(int(rng() % unsigned(i + 1)) - 1);
  }
  return TokenTree(tokens, parents);
}

std::set<Tokens> paths(const TokenTree& tree) {
  std::set<Tokens> all;
  for (std::int64_t node = 0; node < tree.size(); ++node) {
    Tokens tokens;
    for (const std::int32_t i : tree.view().path(node)) tokens.push_back(tree.tokens()[std::size_t(i)]);
    all.insert(tokens);
  }
  return all;
}

void what_does_not_fit_is_refused() {
  CHECK_THROWS(TokenTree({1, 2}, {-1}));
  CHECK_THROWS(TokenTree({1}, {0}));
  CHECK_THROWS(TokenTree({1, 2, 3}, {-1, 2, 0}));
  CHECK_THROWS(TokenTree({1}, {-2}));
  CHECK_THROWS(small().view().path(6));
  CHECK_THROWS(small().view().path(-2));
  CHECK_THROWS(small().cut(-1, std::nullopt));
  CHECK_THROWS(small().cut(std::nullopt, -1));
  std::vector<std::int64_t> mask(200);
  CHECK_THROWS(TokenTree::chain(Tokens(64, 1)).view().write_mask(1, mask.data()));
}

void shape() {
  CHECK(TokenTree().empty());
  CHECK_EQ(TokenTree().view().max_depth(), 0);
  CHECK_EQ(TokenTree().view().mask_words(), 1);
  CHECK(TokenTree::chain({4, 4}) == TokenTree({4, 4}, {-1, 0}));
  CHECK(small().view().depths() == (Nodes{1, 2, 2, 3, 1, 2}));
  CHECK_EQ(small().view().max_depth(), 3);
  CHECK(small().view().path(3) == (Nodes{0, 1, 3}));
  CHECK(small().view().path(-1).empty());
}

void cut_without_and_merge() {
  CHECK(small().cut(std::nullopt, std::nullopt) == small());
  CHECK(small().cut(1, std::nullopt) == TokenTree({10, 20}, {-1, -1}));
  CHECK(small().cut(2, 4) == TokenTree({10, 11, 12, 20}, {-1, 0, 0, -1}));
  CHECK(small().cut(std::nullopt, 2) == TokenTree::chain({10, 11}));
  CHECK(small().cut(0, std::nullopt).empty());
  CHECK(small().without(Tokens{11}) == TokenTree({10, 12, 20}, {-1, 0, -1}));
  CHECK(small().without(Tokens{10, 11}) == TokenTree::chain({20}));
  CHECK(small().without(Tokens{99}) == small());
  const std::vector<TokenTree> trees = {TokenTree::chain({10, 12, 7}), small(), TokenTree()};
  CHECK(TokenTree::merge(trees) ==
        TokenTree({10, 12, 7, 11, 13, 20, 11}, {-1, 0, 1, 0, 3, -1, 5}));
  CHECK(TokenTree::merge({}).empty());
}

void random_trees() {
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) {
    const TokenTree tree = random_tree(rng, 140, 4);
    const std::int64_t words = tree.view().mask_words() + std::int64_t(rng() % 2);
    // A row sees exactly the rows of its path.
    std::vector<std::int64_t> mask(std::size_t((tree.size() + 1) * words), -1);
    tree.view().write_mask(words, mask.data());
    for (std::int64_t row = 0; row <= tree.size(); ++row) {
      std::vector<std::int64_t> wanted(std::size_t(words), 0);
      wanted[0] = 1;
      for (const std::int32_t node : tree.view().path(row - 1)) {
        wanted[std::size_t((node + 1) / 64)] |=
            std::int64_t(std::uint64_t(1) << unsigned((node + 1) % 64));
      }
      const auto own = mask.begin() + row * words;
      CHECK(Tokens(own, own + words) == wanted);
      if (row > 0) {
        CHECK_EQ(tree.view().depths()[std::size_t(row - 1)],
                 std::int32_t(tree.view().path(row - 1).size()));
      }
    }
    const std::int64_t depth = std::int64_t(rng() % 6);
    const std::int64_t nodes = std::int64_t(rng() % 20);
    const TokenTree cut = tree.cut(depth, nodes);
    CHECK(cut.view().max_depth() <= depth && cut.size() <= nodes);
    CHECK(cut.cut(depth, nodes) == cut);
    const auto kept_nodes = std::ptrdiff_t(std::min(nodes, tree.size()));
    const auto first_token = tree.tokens().begin();
    const auto first_parent = tree.parents().begin();
    CHECK(tree.cut(std::nullopt, nodes) ==
          TokenTree(Tokens(first_token, first_token + kept_nodes),
                    Nodes(first_parent, first_parent + kept_nodes)));
    // No token of the path may be unwanted.
    std::set<Tokens> kept;
    for (const Tokens& path : paths(tree)) {
      if (std::find(path.begin(), path.end(), 2) == path.end()) kept.insert(path);
    }
    CHECK(paths(tree.without(Tokens{2})) == kept);
    const TokenTree other = random_tree(rng, 30, 4);
    std::set<Tokens> both = paths(tree);
    both.merge(paths(other));
    const TokenTree merged = TokenTree::merge(std::vector<TokenTree>{tree, other});
    CHECK(paths(merged) == both);
    CHECK_EQ(std::size_t(merged.size()), both.size());  // each path once
  }
}

void scores_follow_their_nodes() {
  const TokenTree plain({1, 2, 3}, {-1, 0, -1});
  const std::vector<float> gains{-1, -2, -4};
  const TokenTree tree = plain.scored(gains);
  CHECK(tree.scores() == std::vector<float>({-1, -3, -4}));
  CHECK(tree == plain && plain.scores().empty());
  CHECK(tree.cut(1, std::nullopt).scores() == std::vector<float>({-1, -4}));
  CHECK(tree.best(tree.scores(), {}, 9, 2).scores() == std::vector<float>({-1, -3}));
  // The better score of a path that both hold.
  const TokenTree other({3, 5}, {-1, 0}, {-0.5f, -0.75f});
  const TokenTree both = TokenTree::merge(std::vector<TokenTree>{tree, other});
  CHECK(both.scores() == std::vector<float>({-1, -3, -0.5f, -0.75f}));
  CHECK(TokenTree::merge(std::vector<TokenTree>{plain, other}).scores().empty());
  const auto found = tree.view().outcomes(Tokens{1, 7});
  CHECK(found.reached == Nodes({0, 2, 1}));
  CHECK(found.taken == std::vector<bool>({true, false, false}));
  const TokenTree only = plain.cut(std::nullopt, 1);
  const trtspec::TreeView first = only;
  CHECK(tree.view().outcomes(Tokens{1, 7}, &first).reached == Nodes({0}));
  // ln 1/2 is one bit: level 4 log2 5 = 9.
  CHECK(plain.view().cells(4, 20) == Nodes({9, 29, 9}));
  bool refused = false;
  try {
    TokenTree({1}, {-1}, {0.0f, 0.0f});
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  what_does_not_fit_is_refused();
  shape();
  cut_without_and_merge();
  random_trees();
  scores_follow_their_nodes();
  return check_result();
}
