// Calls of trtspec::expand_tree, keep_best and marginal_trees (contract: trtspec/ops/build_tree.py):
// what shapes and dtypes can tell is checked, and `kernel`, of any device, is given parameters.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <trtspec/build_tree.hpp>

#include <optional>
#include <tuple>

#include "checks.hpp"

namespace trtspec {

// A pool, children that enter it, and outputs for each request.
class TreeCall {
 public:
  TreeCall(const char* op, const at::Tensor& pool_tokens, const at::Tensor& pool_parents,
           const at::Tensor& pool_scores, int64_t begin, const at::Tensor& tokens,
           const at::Tensor& gains, const std::optional<at::Tensor>& above)
      : op_(op), like_(pool_tokens) {
    check_dim(op, "pool_tokens", pool_tokens, 2);
    const auto pooled = [&](const char* name, const at::Tensor& x, at::ScalarType dtype) {
      const at::Tensor same = checked(name, x, pool_tokens.sizes(), dtype);
      TORCH_CHECK(x.is_contiguous(), op, ": ", name, " must be contiguous, as it is written");
      return same;
    };
    pool = {pooled("pool_tokens", pool_tokens, at::kLong).mutable_data_ptr<int64_t>(),
            pooled("pool_parents", pool_parents, at::kInt).mutable_data_ptr<int32_t>(),
            pooled("pool_scores", pool_scores, at::kFloat).mutable_data_ptr<float>(),
            pool_tokens.size(0), pool_tokens.size(1)};
    check_dim(op, "tokens", tokens, 2);
    if (above) check_dim(op, "above", *above, 2);
    const int64_t lanes = above ? above->size(1) : 1;
    tokens_ = checked("tokens", tokens, {pool.requests * lanes, tokens.size(1)}, at::kLong);
    gains_ = checked("gains", gains, tokens.sizes(), at::kFloat);
    if (above) above_ = checked("above", *above, {pool.requests, lanes}, at::kInt);
    children = {begin,
                lanes,
                tokens.size(1),
                tokens_.const_data_ptr<int64_t>(),
                gains_.const_data_ptr<float>(),
                above ? above_.const_data_ptr<int32_t>() : nullptr};
    TORCH_CHECK(begin >= 0 && begin + children.count() <= pool.size, op, ": candidates ", begin,
                " to ", begin + children.count() - 1, " are not in a pool of ", pool.size);
  }

  // `count` candidates of `all`, or an undefined tensor: the best.
  at::Tensor chosen(const std::optional<at::Tensor>& given, int64_t count, int64_t all) const {
    TORCH_CHECK(count >= 1 && count <= all, op_, ": ", count, " of ", all,
                " candidates cannot be chosen");
    return given ? checked("chosen", *given, {count}, at::kLong) : at::Tensor();
  }

  at::Tensor checked(const char* name, const at::Tensor& x, at::IntArrayRef shape,
                     at::ScalarType dtype) const {
    check_shape(op_, name, x, shape);
    check_dtype(op_, name, x, dtype);
    check_device(op_, name, x, like_);
    return x.contiguous();
  }

  at::Tensor output(int64_t width, at::ScalarType dtype) const {
    return at::empty({pool.requests, width}, like_.options().dtype(dtype));
  }

  TreePool pool;
  TreeChildren children;

 private:
  const char* op_;
  at::Tensor like_, tokens_, gains_, above_;
};

template <class T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

// kernel(pool, children, beam)
template <class Kernel>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> call_expand_tree(
    const TreeCall& call, int64_t width, const std::optional<at::Tensor>& chosen, int64_t first_bit,
    int64_t words, const std::optional<at::Tensor>& seen_above, const Kernel& kernel) {
  const at::Tensor places = call.chosen(chosen, width, call.children.count());
  TORCH_CHECK(words == 0 || (first_bit >= 0 && first_bit + width <= 64 * words),
              "expand_tree: bits ", first_bit, " to ", first_bit + width - 1, " are not in ", words,
              " words of 64");
  at::Tensor above;
  if (seen_above) {
    above = call.checked("seen_above", *seen_above,
                         {call.pool.requests, call.children.lanes, words}, at::kLong);
  }
  at::Tensor tokens = call.output(width, at::kLong), index = call.output(width, at::kInt);
  at::Tensor lanes = call.output(width, at::kLong);
  at::Tensor seen = at::empty({call.pool.requests, width, words}, tokens.options());
  kernel(call.pool, call.children,
         TreeBeam{width, data_or_null<int64_t>(places), tokens.mutable_data_ptr<int64_t>(),
                  index.mutable_data_ptr<int32_t>(), lanes.mutable_data_ptr<int64_t>(), first_bit,
                  words, data_or_null<int64_t>(above), seen.mutable_data_ptr<int64_t>()});
  return {tokens, index, lanes, seen};
}

using Trees = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // tokens, parents, scores

// kernel(pool, children, tree)
template <class Kernel>
Trees call_keep_best(const TreeCall& call, int64_t nodes, const std::optional<at::Tensor>& chosen,
                     const Kernel& kernel) {
  const at::Tensor places = call.chosen(chosen, nodes, call.pool.size);
  TORCH_CHECK(call.children.begin + call.children.count() == call.pool.size,
              "keep_best: the last children must complete the pool of ", call.pool.size,
              ", they end at ", call.children.begin + call.children.count());
  at::Tensor tokens = call.output(nodes, at::kLong), parents = call.output(nodes, at::kInt);
  at::Tensor scores = call.output(nodes, at::kFloat);
  kernel(call.pool, call.children,
         KeptTree{nodes, data_or_null<int64_t>(places), tokens.mutable_data_ptr<int64_t>(),
                  parents.mutable_data_ptr<int32_t>(), scores.mutable_data_ptr<float>()});
  return {tokens, parents, scores};
}

// kernel(params)
template <class Kernel>
Trees call_marginal_trees(const at::Tensor& tokens, const at::Tensor& gains,
                          const at::Tensor& starts, const at::Tensor& lanes,
                          const at::Tensor& ranks, int64_t nodes, bool keep_all,
                          const Kernel& kernel) {
  constexpr const char* op = "marginal_trees";
  check_dim(op, "tokens", tokens, 3);
  check_dim(op, "lanes", lanes, 1);
  const auto checked = [&](const char* name, const at::Tensor& x, at::IntArrayRef shape,
                           at::ScalarType dtype) {
    check_shape(op, name, x, shape);
    check_dtype(op, name, x, dtype);
    check_device(op, name, x, tokens);
    return x.contiguous();
  };
  const int64_t requests = tokens.size(0), candidates = lanes.size(0);
  const at::Tensor ids = checked("tokens", tokens, tokens.sizes(), at::kLong);
  const at::Tensor probabilities = checked("gains", gains, tokens.sizes(), at::kFloat);
  const at::Tensor begins = checked("starts", starts, {tokens.size(1) + 1}, at::kInt);
  const at::Tensor parents_of = checked("lanes", lanes, {candidates}, at::kInt);
  const at::Tensor ranks_of = checked("ranks", ranks, {candidates}, at::kInt);
  TORCH_CHECK(nodes >= 1 && (keep_all ? nodes == candidates : nodes <= candidates), op, ": ", nodes,
              " of ", candidates, " candidates cannot be kept");
  const auto output = [&](at::ScalarType dtype) {
    return at::empty({requests, nodes}, tokens.options().dtype(dtype));
  };
  at::Tensor out = output(at::kLong), parents = output(at::kInt), scores = output(at::kFloat);
  kernel(MarginalTrees{requests, tokens.size(1), tokens.size(2), ids.const_data_ptr<int64_t>(),
                       probabilities.const_data_ptr<float>(), begins.const_data_ptr<int32_t>(),
                       parents_of.const_data_ptr<int32_t>(), ranks_of.const_data_ptr<int32_t>(),
                       keep_all, nodes, out.mutable_data_ptr<int64_t>(),
                       parents.mutable_data_ptr<int32_t>(), scores.mutable_data_ptr<float>()});
  return {out, parents, scores};
}

}  // namespace trtspec
