// TokenTree as torch sees it. A tree that does not fit comes to Python as ValueError, an argument
// of another type as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/token_tree.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tree_holder.hpp"

namespace {

using trtspec::TokenTree;
using Ints = std::vector<int64_t>;

// int64 [3, n + 1]: the token, the parent's row and the depth of each row; 0, -1 and 0 of the root.
at::Tensor rows(int64_t address) {
  const TokenTree& tree = tree_at(address);
  const int64_t count = tree.size() + 1;
  at::Tensor table = trtspec::host_tensor({3, count}, at::kLong);
  int64_t* tokens = table.mutable_data_ptr<int64_t>();
  int64_t* parents = tokens + count;
  int64_t* depths = parents + count;
  *tokens = 0;
  *parents = -1;
  *depths = 0;
  std::copy(tree.tokens().begin(), tree.tokens().end(), tokens + 1);
  std::transform(tree.parents().begin(), tree.parents().end(), parents + 1,
                 [](int32_t parent) { return parent + 1; });
  const std::vector<int32_t> depth = tree.view().depths();
  std::copy(depth.begin(), depth.end(), depths + 1);
  return table;
}

// What `made` returns; its complaint as torch raises a ValueError.
template <typename Made>
auto checked(Made made) {
  try {
    return made();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

// Values that int32 cannot hold are out of every tree's range, and so are what they become.
std::vector<int32_t> narrow_parents(const Ints& parents) {
  std::vector<int32_t> out(parents.size());
  std::transform(parents.begin(), parents.end(), out.begin(), [](int64_t parent) {
    return int32_t(std::clamp<int64_t>(parent, INT32_MIN, INT32_MAX));
  });
  return out;
}

// Float32 values of one dimension, one a node.
std::span<const float> floats(const at::Tensor& values) {
  TORCH_CHECK(values.dim() == 1 && values.scalar_type() == at::kFloat && values.is_contiguous(),
              "scores must be contiguous float32 of one dimension");
  return {values.const_data_ptr<float>(), size_t(values.numel())};
}

Described make(Ints tokens, const Ints& parents, const std::optional<at::Tensor>& scores) {
  std::vector<float> own;
  if (scores) {
    const std::span<const float> values = floats(*scores);
    own.assign(values.begin(), values.end());
  }
  return checked([&] {
    return described(TokenTree(std::move(tokens), narrow_parents(parents), std::move(own)));
  });
}

Described chain(Ints tokens) { return described(TokenTree::chain(std::move(tokens))); }

// The trees of several requests, one behind the other in tokens int64, parents int32 and scores
// float32, `sizes` nodes each, cut to their best nodes: see TokenTree::best.
std::vector<Described> best_of(const Ints& sizes, const at::Tensor& tokens,
                               const at::Tensor& parents, const at::Tensor& scores,
                               const std::vector<Ints>& unwanted, const Ints& max_depths,
                               const Ints& max_nodes) {
  const std::size_t count = sizes.size();
  TORCH_CHECK(unwanted.size() == count && max_depths.size() == count && max_nodes.size() == count,
              "trees: one of each is needed for ", count, " requests");
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t(0));
  const auto is_flat = [total](const at::Tensor& values, at::ScalarType type) {
    return values.scalar_type() == type && values.is_contiguous() && values.numel() == total;
  };
  TORCH_CHECK(is_flat(tokens, at::kLong) && is_flat(parents, at::kInt) &&
                  is_flat(scores, at::kFloat),
              "trees: ", total, " tokens int64, parents int32 and scores float32 are needed");
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  const int32_t* parent = parents.const_data_ptr<int32_t>();
  const float* score = scores.const_data_ptr<float>();
  std::vector<Described> trees;
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = std::size_t(sizes[i]);
    trees.push_back(checked([&] {
      const TokenTree whole({token, token + size}, {parent, parent + size});
      return described(whole.best({score, size}, unwanted[i], max_depths[i], max_nodes[i]));
    }));
    token += size, parent += size, score += size;
  }
  return trees;
}

// The `counts[i]` best nodes of each tree, by its own scores.
std::vector<Described> best_each(const Ints& trees, const Ints& counts) {
  TORCH_CHECK(trees.size() == counts.size(), "trees: one count is needed for each");
  std::vector<Described> best;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const TokenTree& tree = tree_at(trees[i]);
    best.push_back(checked(
        [&] { return described(tree.best(tree.scores(), {}, tree.size(), counts[i])); }));
  }
  return best;
}

// Trees with the sums of other gains along their paths as scores: those of `gains` (float32
// [depths, levels]) at the cells of their nodes, times the exponent of the tree. Behind them, all
// their scores.
std::tuple<std::vector<Described>, at::Tensor> calibrated(const Ints& trees,
                                                          const at::Tensor& gains,
                                                          const std::vector<double>& exponents) {
  TORCH_CHECK(trees.size() == exponents.size(), "trees: one exponent is needed for each");
  TORCH_CHECK(gains.dim() == 2 && gains.scalar_type() == at::kFloat && gains.is_contiguous(),
              "gains must be contiguous float32 of two dimensions");
  const float* table = gains.const_data_ptr<float>();
  std::vector<Described> results;
  std::vector<float> scores, own;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const TokenTree& tree = tree_at(trees[i]);
    own.clear();
    for (const int32_t cell : tree.view().cells(int32_t(gains.size(0)), int32_t(gains.size(1)))) {
      own.push_back(table[cell] * float(exponents[i]));
    }
    TokenTree made = tree.scored(own);
    scores.insert(scores.end(), made.scores().begin(), made.scores().end());
    results.push_back(described(std::move(made)));
  }
  at::Tensor all = trtspec::host_tensor({int64_t(scores.size())}, at::kFloat);
  std::copy(scores.begin(), scores.end(), all.mutable_data_ptr<float>());
  return {std::move(results), all};
}

Described merge(const Ints& trees) {
  std::vector<TokenTree> values;
  for (const int64_t each : trees) values.push_back(tree_at(each));
  return described(TokenTree::merge(values));
}

Described without(int64_t address, const Ints& tokens) {
  return described(tree_at(address).without(tokens));
}

// float32 [n], or [0] without scores.
at::Tensor scores(int64_t address) {
  const std::vector<float>& own = tree_at(address).scores();
  at::Tensor values = trtspec::host_tensor({int64_t(own.size())}, at::kFloat);
  std::copy(own.begin(), own.end(), values.mutable_data_ptr<float>());
  return values;
}

// The nodes reached, of each whether it was taken, and its cell; on the paths of `verified` alone,
// unless that is 0.
std::tuple<Ints, std::vector<bool>, Ints> outcomes(int64_t address, const Ints& tokens,
                                                   int64_t verified, int64_t num_depths,
                                                   int64_t num_levels) {
  const TokenTree& tree = tree_at(address);
  const trtspec::TreeView walked = verified ? tree_at(verified).view() : trtspec::TreeView();
  trtspec::TreeView::Outcomes found =
      tree.view().outcomes(tokens, verified ? &walked : nullptr);
  const std::vector<int32_t> all = tree.view().cells(int32_t(num_depths), int32_t(num_levels));
  Ints cells;
  for (const int32_t node : found.reached) cells.push_back(all[size_t(node)]);
  return {Ints(found.reached.begin(), found.reached.end()), std::move(found.taken), cells};
}

Ints path(int64_t address, int64_t node) {
  return checked([&] {
    const std::vector<int32_t> path = tree_at(address).view().path(node);
    return Ints(path.begin(), path.end());
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<TreeHolder>("TokenTree")
      .def_static("make", &make)
      .def_static("chain", &chain)
      .def_static("merge", &merge)
      .def_static("best_of", &best_of)
      .def_static("best_each", &best_each)
      .def_static("calibrated", &calibrated)
      .def_static("rows", &rows)
      .def_static("without", &without)
      .def_static("scores", &scores)
      .def_static("outcomes", &outcomes)
      .def_static("path", &path);
  register_drafts(m);
  register_ngram(m);
  register_packing(m);
  register_row_sampler(m);
  register_suffix(m);
}
