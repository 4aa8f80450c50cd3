// DraftBatch: the draft tokens of a step's requests, as columns of all their nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <trtspec/tree_view.hpp>
#include <vector>

namespace trtspec {

// The nodes of one request behind those of the other, in the order of a step's items.
class DraftBatch {
 public:
  // Requests.
  std::size_t size() const { return starts_.size() - 1; }
  // The nodes of one. Valid until the next change.
  TreeView operator[](std::size_t request) const;

  // The next request's nodes; by default none. Of a tree without scores each node is as likely as
  // not, once its parent is right.
  void append(TreeView tree = {});
  // The requests at these places; of -1, one without nodes. Throws std::invalid_argument for a
  // place that is not there.
  DraftBatch pick(std::span<const std::int64_t> places) const;

 private:
  std::vector<std::size_t> starts_ = {0};  // where the nodes of each begin, and the end
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> parents_;  // within the request
  std::vector<float> scores_;
};

}  // namespace trtspec
