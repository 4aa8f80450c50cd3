// TreeView: the draft tokens of one request, where they lie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trtspec {

// A look at draft tokens with their parents, which somebody else holds; a chain is a tree of width
// one. Row 0 of a verify step is the root (the newest accepted token, not part of the tree); node n
// is row n + 1.
//
// parents[i] is the index of node i's parent, -1 for a child of the root; a parent comes before its
// children. scores: of each node, ln of the probability that its drafter gives the path to it; none
// at all, or one a node. sources: which member of a union proposed each node, kNoSource: none did;
// none at all: the first did. Neither counts in a comparison.
struct TreeView {
  static constexpr std::int64_t kBitsPerWord = 64;
  static constexpr std::uint8_t kNoSource = 255;

  std::span<const std::int64_t> tokens = {};
  std::span<const std::int32_t> parents = {};
  std::span<const float> scores = {};
  std::span<const std::uint8_t> sources = {};

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
  bool operator==(const TreeView& other) const;

  // Of each node; a child of the root has depth 1.
  std::vector<std::int32_t> depths() const;
  // 0 without nodes.
  std::int32_t max_depth() const;

  // Words of 64 bits that one row of the mask needs; at least 1.
  std::int64_t mask_words() const { return size() / kBitsPerWord + 1; }
  // Writes [size() + 1, words]: bit j % 64 of word j / 64 of row r says that row r sees row j. The
  // root sees itself; a node sees the root, its ancestors and itself. Throws std::invalid_argument
  // for fewer than mask_words() words.
  void write_mask(std::int64_t words, std::int64_t* out) const;

  // Of each node, its place in a table of num_depths x num_levels, by rows: its depth (1 is row 0;
  // what is deeper than the table, its last row) and the probability that it has given its parent
  // by the scores (1/2 where there are none), in levels that are finer towards 1:
  // 4 log2(1 - 4 log2 p), rounded down.
  std::vector<std::int32_t> cells(std::int32_t num_depths, std::int32_t num_levels) const;
  // That of a node of a depth with ln of this probability given its parent.
  static std::int32_t cell(std::int32_t depth, float gain, std::int32_t num_depths,
                           std::int32_t num_levels);
  // What became of the nodes once the target emitted `text`, which goes down the tree as far
  // as nodes carry it; `reached` are the children of the rows on that way, in the order of the way,
  // `taken` says of each whether it is the one that carries the next token (the first of several).
  // Deeper nodes are not known to be right or wrong. With `verified`, only paths that it holds are
  // walked and reported.
  struct Outcomes {
    std::vector<std::int32_t> reached;
    std::vector<bool> taken;
  };
  Outcomes outcomes(std::span<const std::int64_t> text, const TreeView* verified = nullptr) const;
  // Of each source up to the last one of a node, how many nodes it proposed, and how many of those
  // the accepted `rows` are: 0 the root's, n + 1 that of node n.
  struct OfSource {
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;
  };
  std::vector<OfSource> by_source(std::span<const std::int64_t> rows) const;
  // Nodes from a child of the root down to `node`, inclusive; none for the root, -1. Throws
  // std::invalid_argument for a node that is not there.
  std::vector<std::int32_t> path(std::int64_t node) const;
};

}  // namespace trtspec
