// TokenTree as torch sees it. A tree that does not fit comes to Python as ValueError, an argument
// of another type as RuntimeError.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/token_tree.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace {

using trtspec::TokenTree;
using Ints = std::vector<int64_t>;

struct TreeHolder;
using Pointer = c10::intrusive_ptr<TreeHolder>;
// A tree with what every verify step asks of it, since a call from Python costs more than any of
// it: int64 [3, n + 1], the token, the parent's row and the depth of each row (0, -1 and 0 of the
// root), and the largest depth.
using Described = std::tuple<Pointer, at::Tensor, int64_t>;

struct TreeHolder : torch::CustomClassHolder {
  explicit TreeHolder(TokenTree made) : tree(std::move(made)) {}
  TokenTree tree;
};

Described described(TokenTree tree) {
  const int64_t rows = tree.size() + 1;
  at::Tensor table = at::empty({3, rows}, at::kLong);
  int64_t* tokens = table.mutable_data_ptr<int64_t>();
  int64_t* parents = tokens + rows;
  int64_t* depths = parents + rows;
  *tokens = 0;
  *parents = -1;
  *depths = 0;
  std::copy(tree.tokens().begin(), tree.tokens().end(), tokens + 1);
  std::transform(tree.parents().begin(), tree.parents().end(), parents + 1,
                 [](int32_t parent) { return parent + 1; });
  const std::vector<int32_t> depth = tree.depths();
  std::copy(depth.begin(), depth.end(), depths + 1);
  const int64_t max_depth = *std::max_element(depths, depths + rows);
  return {c10::make_intrusive<TreeHolder>(std::move(tree)), table, max_depth};
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
std::vector<int32_t> narrowed(const Ints& parents) {
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
    return described(TokenTree(std::move(tokens), narrowed(parents), std::move(own)));
  });
}

Described chain(Ints tokens) { return described(TokenTree::chain(std::move(tokens))); }

Described merge(const std::vector<Pointer>& trees) {
  std::vector<TokenTree> values;
  for (const Pointer& each : trees) values.push_back(each->tree);
  return described(TokenTree::merge(values));
}

Described cut(const Pointer& self, std::optional<int64_t> max_depth,
              std::optional<int64_t> max_nodes) {
  return checked([&] { return described(self->tree.cut(max_depth, max_nodes)); });
}

Described without(const Pointer& self, const Ints& tokens) {
  return described(self->tree.without(tokens));
}

Described selected(const Pointer& self, const Ints& kept) {
  return checked([&] { return described(self->tree.select(narrowed(kept))); });
}

// Without scores, by the tree's own.
Described best(const Pointer& self, const std::optional<at::Tensor>& scores, const Ints& unwanted,
               int64_t max_depth, int64_t max_nodes) {
  return checked([&] {
    const std::span<const float> values = scores ? floats(*scores) : self->tree.scores();
    return described(self->tree.best(values, unwanted, max_depth, max_nodes));
  });
}

// float32 [n], or [0] without scores.
at::Tensor scores(const Pointer& self) {
  const std::vector<float>& own = self->tree.scores();
  at::Tensor values = at::empty({int64_t(own.size())}, at::kFloat);
  std::copy(own.begin(), own.end(), values.mutable_data_ptr<float>());
  return values;
}

Described scored(const Pointer& self, const at::Tensor& gains) {
  return checked([&] { return described(self->tree.scored(floats(gains))); });
}

// int32 [n].
at::Tensor cells(const Pointer& self, int64_t num_depths, int64_t num_levels) {
  const std::vector<int32_t> own = self->tree.cells(int32_t(num_depths), int32_t(num_levels));
  at::Tensor values = at::empty({int64_t(own.size())}, at::kInt);
  std::copy(own.begin(), own.end(), values.mutable_data_ptr<int32_t>());
  return values;
}

// The nodes reached, and of each whether it was taken.
std::tuple<Ints, std::vector<bool>> outcomes(const Pointer& self, const Ints& tokens,
                                             const std::optional<Pointer>& verified) {
  TokenTree::Outcomes found =
      self->tree.outcomes(tokens, verified ? &(*verified)->tree : nullptr);
  return {Ints(found.reached.begin(), found.reached.end()), std::move(found.taken)};
}

at::Tensor mask(const Pointer& self, int64_t words) {
  const TokenTree& tree = self->tree;
  at::Tensor mask = at::empty({tree.size() + 1, std::max(words, tree.mask_words())}, at::kLong);
  checked([&] {
    tree.write_mask(words, mask.mutable_data_ptr<int64_t>());
    return true;
  });
  return mask;
}

Ints path(const Pointer& self, int64_t node) {
  return checked([&] {
    const std::vector<int32_t> path = self->tree.path(node);
    return Ints(path.begin(), path.end());
  });
}

bool is_chain(const Pointer& self) { return self->tree.is_chain(); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<TreeHolder>("TokenTree")
      .def_static("make", &make)
      .def_static("chain", &chain)
      .def_static("merge", &merge)
      .def("cut", &cut)
      .def("without", &without)
      .def("select", &selected)
      .def("best", &best)
      .def("scores", &scores)
      .def("scored", &scored)
      .def("cells", &cells)
      .def("outcomes", &outcomes)
      .def("mask", &mask)
      .def("path", &path)
      .def("is_chain", &is_chain);
}
