// DraftBatch: the draft tokens of a step's requests, as columns of all their nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <trtspec/tree_view.hpp>
#include <vector>

namespace trtspec {

// What a request can use of a draft. What follows one of the `ends` is never emitted, and the end
// itself needs no draft: its parent's own row says whether it comes.
struct DraftCut {
  std::span<const std::int64_t> ends;
  std::int64_t max_depth;
  std::int64_t max_nodes;
};

// The nodes of one request behind those of the other, in the order of a step's items. All that
// makes batches of batches lets each node keep its score and its source.
class DraftBatch {
 public:
  // Of so many requests without nodes.
  explicit DraftBatch(std::size_t requests = 0) : starts_(requests + 1, 0) {}

  // Requests.
  std::size_t size() const { return starts_.size() - 1; }
  // The nodes of one. Valid until the next change.
  TreeView operator[](std::size_t request) const;

  // The next request's nodes; by default none. Of a tree without scores each node is as likely as
  // not, once its parent is right. Throws std::invalid_argument for arrays that are no tree.
  void append(TreeView tree = {});
  // The same of the best nodes of a tree with scores (none above its parent's), of equals the earlier
  // ones. Left out are nodes of score -inf or NaN, and what the cut takes away.
  void append_best(TreeView tree, const DraftCut& cut);

  // The requests at these places; of -1, one without nodes. Throws std::invalid_argument for a
  // place that is not there.
  DraftBatch pick(std::span<const std::int64_t> places) const;
  // The counts[i] best nodes of each request.
  DraftBatch best(std::span<const std::int64_t> counts) const;
  // The `count` best nodes of all requests together, of equals those of earlier ones.
  DraftBatch likeliest(std::int64_t count) const;
  // Of batches of the same requests, the union by token path: a path that several hold appears
  // once, with the highest score that it has. Nodes keep the order in which they first come, so
  // those of an earlier batch come first, and a node's source is the one of `sources`, one a batch,
  // whose batch held it first.
  static DraftBatch merge(std::span<const DraftBatch* const> batches,
                          std::span<const std::uint8_t> sources);
  // With the sources that the same paths have in another batch of these requests; kNoSource for
  // those that it does not hold.
  DraftBatch attributed(const DraftBatch& proposed) const;
  // With other scores: along the path to a node, the sum of `gains`, a table of num_levels columns,
  // at the cells of its nodes (TreeView::cells), times the exponent of the request.
  DraftBatch calibrated(std::span<const float> gains, std::int32_t num_levels,
                        std::span<const double> exponents) const;

 private:
  // The next request's nodes are those of a tree with scores that are `kept`, whose parents are.
  void append_kept(TreeView tree, std::span<const std::int32_t> kept);
  // Throws std::invalid_argument unless there are as many of `what` as requests.
  void check_count(std::size_t count, const char* what) const;

  std::vector<std::size_t> starts_;  // where the nodes of each begin, and the end
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> parents_;  // within the request
  std::vector<float> scores_;
  std::vector<std::uint8_t> sources_;
};

}  // namespace trtspec
