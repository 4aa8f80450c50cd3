// Trees that hold their nodes, for tests.
#pragma once

#include <cstdint>
#include <random>
#include <trtspec/tree_view.hpp>
#include <vector>

namespace trtspec::test {

struct Tree {
  std::vector<std::int64_t> tokens = {};
  std::vector<std::int32_t> parents = {};
  std::vector<float> scores = {};

  TreeView view() const { return {tokens, parents, scores}; }
  operator TreeView() const { return view(); }
};

// Any shape; tokens below `vocab`.
inline Tree random_tree(std::mt19937& rng, int max_nodes, int vocab) {
  Tree tree;
  for (int i = 0, size = int(rng() % unsigned(max_nodes + 1)); i < size; ++i) {
    tree.tokens.push_back(std::int64_t(rng() % unsigned(vocab)));
    tree.parents.push_back(int(rng() % unsigned(i + 1)) - 1);
  }
  return tree;
}

}  // namespace trtspec::test
