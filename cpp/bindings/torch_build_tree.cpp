// trtspec::expand_tree, keep_best and marginal_trees (contract: trtspec/ops/build_tree.py).
#include <torch/library.h>

#include <algorithm>

#include "build_tree_call.hpp"
#include "shim.hpp"

namespace {

using at::Tensor;

// Indices that the kernels follow.
template <class T>
void check_indices(const char* op, const char* name, const T* values, int64_t count,
                   int64_t limit) {
  const bool inside = values == nullptr || std::all_of(values, values + count, [limit](T value) {
                        return value >= 0 && value < limit;
                      });
  TORCH_CHECK(inside, op, ": ", name, " must be from 0 to ", limit - 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> expand_tree(
    Tensor& pool_tokens, Tensor& pool_parents, Tensor& pool_scores, int64_t begin,
    const Tensor& tokens, const Tensor& gains, const std::optional<Tensor>& above, int64_t width,
    const std::optional<Tensor>& chosen, int64_t first_bit, int64_t words,
    const std::optional<Tensor>& seen_above) {
  constexpr const char* op = "expand_tree";
  const trtspec::TreeCall call(op, pool_tokens, pool_parents, pool_scores, begin, tokens, gains,
                               above);
  return trtspec::call_expand_tree(
      call, width, chosen, first_bit, words, seen_above,
      [](const auto& pool, const auto& children, const auto& beam) {
        check_indices(op, "above", children.above, pool.requests * children.lanes, children.begin);
        check_indices(op, "chosen", beam.chosen, beam.width, children.count());
        trtspec::expand_tree(pool, children, beam);
      });
}

trtspec::Trees keep_best(Tensor& pool_tokens, Tensor& pool_parents, Tensor& pool_scores,
                         int64_t begin, const Tensor& tokens, const Tensor& gains,
                         const std::optional<Tensor>& above, int64_t nodes,
                         const std::optional<Tensor>& chosen) {
  constexpr const char* op = "keep_best";
  const trtspec::TreeCall call(op, pool_tokens, pool_parents, pool_scores, begin, tokens, gains,
                               above);
  return trtspec::call_keep_best(
      call, nodes, chosen, [](const auto& pool, const auto& children, const auto& tree) {
        check_indices(op, "above", children.above, pool.requests * children.lanes, children.begin);
        check_indices(op, "chosen", tree.chosen, tree.nodes, pool.size);
        trtspec::keep_best(pool, children, tree);
      });
}

trtspec::Trees marginal_trees(const Tensor& tokens, const Tensor& gains, const Tensor& starts,
                              const Tensor& lanes, const Tensor& ranks, int64_t nodes,
                              bool keep_all) {
  return trtspec::call_marginal_trees(
      tokens, gains, starts, lanes, ranks, nodes, keep_all, [&](const auto& params) {
        constexpr const char* op = "marginal_trees";
        int32_t width = 1;  // nodes of the depth above
        for (int64_t depth = 0; depth < params.depths; ++depth) {
          const int32_t begin = params.starts[depth], end = params.starts[depth + 1];
          TORCH_CHECK((depth > 0 || begin == 0) && begin <= end && end <= lanes.size(0), op,
                      ": starts must rise from 0 to ", lanes.size(0));
          check_indices(op, "lanes", params.lanes + begin, end - begin, width);
          check_indices(op, "ranks", params.ranks + begin, end - begin, params.count);
          width = keep_all ? end - begin : std::min<int64_t>(end - begin, nodes);
        }
        trtspec::marginal_trees(params);
      });
}

}  // namespace

using trtspec::optional_tensor, trtspec::run_shims, trtspec::tensor;

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_expand_tree(
    AtenTensorHandle pool_tokens, AtenTensorHandle pool_parents, AtenTensorHandle pool_scores,
    int64_t begin, AtenTensorHandle tokens, AtenTensorHandle gains, AtenTensorHandle* above,
    int64_t width, AtenTensorHandle* chosen, int64_t first_bit, int64_t words,
    AtenTensorHandle* seen_above, AtenTensorHandle* beam_tokens, AtenTensorHandle* index,
    AtenTensorHandle* lanes, AtenTensorHandle* seen) {
  return run_shims(
      [&] {
        return expand_tree(tensor(pool_tokens), tensor(pool_parents), tensor(pool_scores), begin,
                           tensor(tokens), tensor(gains), optional_tensor(above), width,
                           optional_tensor(chosen), first_bit, words, optional_tensor(seen_above));
      },
      beam_tokens, index, lanes, seen);
}

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_keep_best(
    AtenTensorHandle pool_tokens, AtenTensorHandle pool_parents, AtenTensorHandle pool_scores,
    int64_t begin, AtenTensorHandle tokens, AtenTensorHandle gains, AtenTensorHandle* above,
    int64_t nodes, AtenTensorHandle* chosen, AtenTensorHandle* kept_tokens,
    AtenTensorHandle* parents, AtenTensorHandle* scores) {
  return run_shims(
      [&] {
        return keep_best(tensor(pool_tokens), tensor(pool_parents), tensor(pool_scores), begin,
                         tensor(tokens), tensor(gains), optional_tensor(above), nodes,
                         optional_tensor(chosen));
      },
      kept_tokens, parents, scores);
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "expand_tree(Tensor(a!) pool_tokens, Tensor(b!) pool_parents, Tensor(c!) pool_scores, "
      "int begin, Tensor tokens, Tensor gains, Tensor? above, int width, Tensor? chosen, "
      "int first_bit, int words, Tensor? seen_above) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "keep_best(Tensor(a!) pool_tokens, Tensor(b!) pool_parents, Tensor(c!) pool_scores, "
      "int begin, Tensor tokens, Tensor gains, Tensor? above, int nodes, Tensor? chosen) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "marginal_trees(Tensor tokens, Tensor gains, Tensor starts, Tensor lanes, Tensor ranks, "
      "int nodes, bool keep_all) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("expand_tree", &expand_tree);
  m.impl("keep_best", &keep_best);
  m.impl("marginal_trees", &marginal_trees);
}
