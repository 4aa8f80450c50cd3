#include <trtspec/tree_view.hpp>

#include <random>

#include "check.hpp"
#include "trees.hpp"

namespace {

using trtspec::TreeView;
using trtspec::test::Tree;
using Tokens = std::vector<std::int64_t>;
using Nodes = std::vector<std::int32_t>;

//  root - 0 - 1 - 3
//    \      \ 2
//     4 - 5
const Tree kSmall = {{10, 11, 12, 13, 20, 11}, {-1, 0, 0, 1, -1, 4}};

void shape() {
  const TreeView small = kSmall;
  CHECK(TreeView().empty());
  CHECK_EQ(TreeView().max_depth(), 0);
  CHECK_EQ(TreeView().mask_words(), 1);
  CHECK(small.depths() == (Nodes{1, 2, 2, 3, 1, 2}));
  CHECK_EQ(small.max_depth(), 3);
  CHECK(small.path(3) == (Nodes{0, 1, 3}));
  CHECK(small.path(-1).empty());
  CHECK_THROWS(small.path(6));
  CHECK_THROWS(small.path(-2));
  Tree other = kSmall;
  CHECK(other.view() == small);
  other.parents[5] = 3;
  CHECK(!(other.view() == small));
}

void a_row_sees_the_rows_of_its_path() {
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) {
    const Tree owner = trtspec::test::random_tree(rng, 140, 4);
    const TreeView tree = owner;
    const std::int64_t words = tree.mask_words() + std::int64_t(rng() % 2);
    std::vector<std::int64_t> mask(std::size_t((tree.size() + 1) * words), -1);
    tree.write_mask(words, mask.data());
    for (std::int64_t row = 0; row <= tree.size(); ++row) {
      const Nodes path = tree.path(row - 1);
      std::vector<std::int64_t> wanted(std::size_t(words), 0);
      wanted[0] = 1;
      for (const std::int32_t node : path) {
        wanted[std::size_t((node + 1) / 64)] |=
            std::int64_t(std::uint64_t(1) << unsigned((node + 1) % 64));
      }
      const auto own = mask.begin() + row * words;
      CHECK(Tokens(own, own + words) == wanted);
      if (row > 0) CHECK_EQ(tree.depths()[std::size_t(row - 1)], std::int32_t(path.size()));
    }
  }
  const Tree wide = {Tokens(64, 1), Nodes(64, -1)};
  std::vector<std::int64_t> mask(200);
  CHECK_THROWS(wide.view().write_mask(1, mask.data()));
}

void what_became_of_nodes() {
  const Tree tree = {{1, 2, 3}, {-1, 0, -1}};
  const auto found = tree.view().outcomes(Tokens{1, 7});
  CHECK(found.reached == Nodes({0, 2, 1}));
  CHECK(found.taken == std::vector<bool>({true, false, false}));
  const Tree first = {{1}, {-1}};
  const TreeView verified = first;
  CHECK(tree.view().outcomes(Tokens{1, 7}, &verified).reached == Nodes({0}));
  // ln 1/2 is one bit: level 4 log2 5 = 9.
  CHECK(tree.view().cells(4, 20) == Nodes({9, 29, 9}));
}

}  // namespace

int main() {
  shape();
  a_row_sees_the_rows_of_its_path();
  what_became_of_nodes();
  return check_result();
}
