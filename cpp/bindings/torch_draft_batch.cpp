// DraftBatch as torch sees it. What does not fit comes to Python as ValueError, an argument of
// another type as RuntimeError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "drafts_holder.hpp"

namespace {

using trtspec::DraftBatch;
using trtspec::TreeView;
using Ints = std::vector<int64_t>;

// What `made` returns; its complaint as torch raises a ValueError.
template <typename Made>
DescribedDrafts checked(Made made) {
  try {
    return described(made());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void check_columns(const at::Tensor& tokens, const at::Tensor& parents, const at::Tensor& scores,
                   int64_t nodes) {
  const auto fits = [nodes](const at::Tensor& values, at::ScalarType type) {
    return values.scalar_type() == type && values.is_contiguous() && values.numel() == nodes;
  };
  TORCH_CHECK(fits(tokens, at::kLong) && fits(parents, at::kInt) && fits(scores, at::kFloat),
              "drafts: ", nodes, " tokens int64, parents int32 and scores float32 are needed");
}

// The nodes number `first` to `first + count` of columns.
TreeView part(const at::Tensor& tokens, const at::Tensor& parents, const at::Tensor& scores,
              int64_t first, int64_t count) {
  const auto size = size_t(count);
  return {{tokens.const_data_ptr<int64_t>() + first, size},
          {parents.const_data_ptr<int32_t>() + first, size},
          {scores.const_data_ptr<float>() + first, size}};
}

// Of columns of all nodes, so many of each request.
DescribedDrafts of(const Ints& counts, const at::Tensor& tokens, const at::Tensor& parents,
                   const at::Tensor& scores) {
  check_columns(tokens, parents, scores, std::accumulate(counts.begin(), counts.end(), int64_t(0)));
  return checked([&] {
    DraftBatch drafts;
    for (int64_t first = 0; const int64_t count : counts) {
      drafts.append(part(tokens, parents, scores, first, count));
      first += count;
    }
    return drafts;
  });
}

// Of the columns [R, n] of a rollout, whose row places[i] are the nodes of item i (-1: none), cut to
// what each row's request can use.
DescribedDrafts cut(const Ints& places, const at::Tensor& tokens, const at::Tensor& parents,
                    const at::Tensor& scores, const std::vector<Ints>& ends, const Ints& max_depths,
                    const Ints& max_nodes) {
  const auto rows = int64_t(ends.size());
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(0) == rows && int64_t(max_depths.size()) == rows &&
                  int64_t(max_nodes.size()) == rows,
              "drafts: one of each is needed for ", rows, " rows");
  const int64_t count = tokens.size(1);
  check_columns(tokens, parents, scores, rows * count);
  return checked([&] {
    DraftBatch drafts;
    for (const int64_t place : places) {
      if (place < 0) {
        drafts.append();
        continue;
      }
      TORCH_CHECK(place < rows, "drafts: ", rows, " rows have no place ", place);
      const auto row = size_t(place);
      drafts.append_best(part(tokens, parents, scores, place * count, count),
                         {ends[row], max_depths[row], max_nodes[row]});
    }
    return drafts;
  });
}

DescribedDrafts pick(int64_t address, const Ints& places) {
  return checked([&] { return drafts_at(address).pick(places); });
}

DescribedDrafts best(int64_t address, const Ints& counts) {
  return checked([&] { return drafts_at(address).best(counts); });
}

DescribedDrafts likeliest(int64_t address, int64_t count) {
  return described(drafts_at(address).likeliest(count));
}

// sources: of each batch, 0 to 254.
DescribedDrafts merge(const Ints& addresses, const Ints& sources) {
  std::vector<const DraftBatch*> batches;
  for (const int64_t address : addresses) batches.push_back(&drafts_at(address));
  for (const int64_t source : sources) {
    TORCH_CHECK_VALUE(source >= 0 && source < TreeView::kNoSource, "drafts: a source is 0 to ",
                      TreeView::kNoSource - 1, ", got ", source);
  }
  const std::vector<uint8_t> narrow(sources.begin(), sources.end());
  return checked([&] { return DraftBatch::merge(batches, narrow); });
}

DescribedDrafts attributed(int64_t address, int64_t proposed) {
  return checked([&] { return drafts_at(address).attributed(drafts_at(proposed)); });
}

// Of one request and each source: the nodes that it proposed, and those of them that are accepted.
std::tuple<Ints, Ints> by_source(int64_t address, int64_t request, const Ints& rows) {
  Ints drafted, accepted;
  for (const TreeView::OfSource& one : drafts_at(address)[size_t(request)].by_source(rows)) {
    drafted.push_back(one.drafted);
    accepted.push_back(one.accepted);
  }
  return {std::move(drafted), std::move(accepted)};
}

// `gains`: float32 [depths, levels].
DescribedDrafts calibrated(int64_t address, const at::Tensor& gains,
                           const std::vector<double>& exponents) {
  TORCH_CHECK(gains.dim() == 2 && gains.scalar_type() == at::kFloat && gains.is_contiguous(),
              "gains must be contiguous float32 of two dimensions");
  const std::span table(gains.const_data_ptr<float>(), size_t(gains.numel()));
  return checked(
      [&] { return drafts_at(address).calibrated(table, int32_t(gains.size(1)), exponents); });
}

// float32 [B, W]: the scores of each request's nodes, falling; -inf where it has fewer than W.
at::Tensor ranked(int64_t address) {
  const DraftBatch& drafts = drafts_at(address);
  int64_t width = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) width = std::max(width, drafts[i].size());
  at::Tensor table = trtspec::host_tensor({int64_t(drafts.size()), width}, at::kFloat);
  float* row = table.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < drafts.size(); ++i, row += width) {
    const std::span<const float> scores = drafts[i].scores;
    float* end = std::copy(scores.begin(), scores.end(), row);
    std::sort(row, end, std::greater<>());
    std::fill(end, row + width, -std::numeric_limits<float>::infinity());
  }
  return table;
}

// Of one request the rows whose children are known to be right or wrong, of these whether each was
// taken, and its cell; on the paths of the same request of `verified` alone, unless that is 0.
std::tuple<int64_t, std::vector<bool>, Ints> outcomes(int64_t address, int64_t request,
                                                      const Ints& tokens, int64_t verified,
                                                      int64_t num_depths, int64_t num_levels) {
  const TreeView tree = drafts_at(address)[size_t(request)];
  const TreeView walked = verified ? drafts_at(verified)[size_t(request)] : TreeView();
  TreeView::Outcomes found = tree.outcomes(tokens, verified ? &walked : nullptr);
  const std::vector<int32_t> all = tree.cells(int32_t(num_depths), int32_t(num_levels));
  Ints cells;
  for (const int32_t node : found.reached) cells.push_back(all[size_t(node)]);
  const int64_t rows = found.reached.empty() ? 0 : tree.depths()[size_t(found.reached.back())];
  return {rows, std::move(found.taken), std::move(cells)};
}

// The columns of one request: tokens int64, parents int32 and scores float32, [n] each.
std::vector<at::Tensor> nodes(int64_t address, int64_t request) {
  const TreeView tree = drafts_at(address)[size_t(request)];
  return {trtspec::host_copy(tree.tokens), trtspec::host_copy(tree.parents),
          trtspec::host_copy(tree.scores)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<DraftsHolder>("DraftBatch")
      .def_static("of", &of)
      .def_static("cut", &cut)
      .def_static("pick", &pick)
      .def_static("best", &best)
      .def_static("likeliest", &likeliest)
      .def_static("merge", &merge)
      .def_static("attributed", &attributed)
      .def_static("by_source", &by_source)
      .def_static("calibrated", &calibrated)
      .def_static("ranked", &ranked)
      .def_static("outcomes", &outcomes)
      .def_static("nodes", &nodes);
  register_ngram(m);
  register_packing(m);
  register_row_sampler(m);
  register_suffix(m);
}
