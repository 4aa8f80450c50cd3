// SuffixTree::check: the invariants, by a walk over the whole tree.
#include <stdexcept>
#include <string>

#include "suffix_tree_impl.hpp"

namespace trtspec {

using suffix::kNone;
using suffix::kRoot;
using suffix::Node;

namespace {
void require(bool holds, const char* what, std::int32_t node) {
  if (!holds) {
    throw std::logic_error("suffix tree: node " + std::to_string(node) + ": " + what);
  }
}
}  // namespace

void SuffixTree::Impl::check() const {
  std::int64_t used = 0;
  for (std::int32_t i = kRoot + 1; i < nodes.end(); ++i) {
    if (!nodes.in_use(i)) continue;
    ++used;
    const Node& node = nodes[i];
    const Node& parent = nodes[node.parent];
    require(length(i) > 0 && length(i) <= max_depth, "its length is wrong", i);
    require(*edge(i) == node.token, "its first token is wrong", i);
    require(nodes.find_child(node.parent, node.token) == i, "its parent does not find it", i);
    require(node.pos >= 0, "its text begins before its sequence", i);
    std::int32_t depth = 0;
    for (std::int32_t above = i; above != kRoot; above = nodes[above].parent) {
      depth += length(above);
      // The text it points to holds the whole path.
      const TokenId* text = edge(i) + length(i) - depth;
      require(std::equal(text, text + length(above), edge(above)), "its text is another", i);
    }
    require(depth <= max_depth, "it is too deep", i);
    if (node.parent != kRoot) {
      require(node.count < parent.count, "it should be one with its parent", i);
      const Node& before = nodes[node.prev];
      require(parent.first_child == i ? before.next == kNone : before.next == i,
              "its siblings are not linked", i);
      require(parent.first_child == i || before.count >= node.count, "it is out of order", i);
      if (parent.wide && (parent.first_child == i || before.count != node.count)) {
        require(nodes.group(node.parent, node.count) == i, "it should lead its group", i);
      }
    }
    if (nodes.is_tail(i)) {
      require(node.count == 1, "a tail is one window", i);
      require(node.pos - node.start == depth - length(i), "a tail starts elsewhere", i);
      require(sequences[std::size_t(node.seq)].alive && !sequences[std::size_t(node.seq)].spare,
              "a tail is of a living sequence", i);
      continue;
    }
    std::int64_t below = 0;
    for (std::int32_t c = node.first_child; c != kNone; c = nodes[c].next) {
      require(nodes[c].parent == i, "its child has another parent", i);
      below += nodes[c].count;
    }
    require(below <= node.count, "its children have more windows", i);
  }
  require(used == nodes.num_used(), "the number of nodes is wrong", kRoot);
  require(nodes[kRoot].count == live_tokens, "the root's count is wrong", kRoot);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SuffixSequence& own = sequences[s];
    if (!own.open) continue;
    for (std::int32_t m = 1; m <= own.size() && m < max_depth; ++m) {
      Place place{};
      const TokenId* suffix = own.tokens.data() + own.size() - m;
      require(find(suffix, m, place) && place.used == length(place.node),
              "a sequence ends within it", place.node);
      const bool tail = nodes.is_tail(place.node);
      require(tail == (m > own.walkers), "the number of walkers is wrong", place.node);
      if (!tail) {
        require(own.ring[std::size_t((own.size() - m) & mask)] == place.node,
                "a walker is elsewhere", place.node);
      }
    }
  }
}

}  // namespace trtspec
