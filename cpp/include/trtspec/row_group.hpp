// RowGroup: the rows of one request in an engine's call, and where they are written among those of
// others.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <trtspec/row_arrays.hpp>
#include <trtspec/tree_view.hpp>

namespace trtspec {

// The rows of one request: tokens behind its committed ones, then the nodes of its tree. A tree
// needs its root to be the only token. last_logits: the logits of the last token and of every node
// are wanted; without it none (the middle of a prefill). gap: tokens that the request has beside the
// `context` rows which its cache holds: positions are so many further. state: the slot of the
// request's state, of an engine that keeps such; of a draft's call, source: the snapshot that it is
// copied from before, and snapshot: where it is copied to behind the call; -1: neither. adapter: where
// its adapter lies among those of the engine; -1: it has none. What it points to outlives the call.
struct RowGroup {
  std::span<const std::int64_t> tokens;
  std::int64_t context = 0;
  std::span<const std::int32_t> blocks;
  TreeView tree = {};
  bool last_logits = true;
  std::int64_t gap = 0;
  std::int32_t state = -1;
  std::int32_t source = -1;
  std::int32_t snapshot = -1;
  std::int32_t adapter = -1;

  std::int64_t num_rows() const { return std::ssize(tokens) + tree.size(); }
};

// Writes the rows of one request behind those of others.
class RowWriter {
 public:
  RowWriter(const RowArrays& to, const CacheLayout& layout) : to_(to), layout_(layout) {
    to_.query_start[0] = 0;
  }

  // Throws std::logic_error for rows that do not fit their request's blocks, or blocks that do not
  // fit the layout.
  static void check(const RowGroup& group, const CacheLayout& layout);

  // Of a request that was checked.
  void add(const RowGroup& group);
  // A request without rows or blocks.
  void add_none();
  // Fills up to so many rows and wanted logits, with rows of slot -1 that belong to nobody.
  void pad(std::int64_t rows, std::int64_t logits);

  std::int64_t rows() const { return rows_; }
  std::int64_t logits() const { return logits_; }

 private:
  RowArrays to_;
  CacheLayout layout_;
  std::int64_t requests_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t logits_ = 0;
};

}  // namespace trtspec
