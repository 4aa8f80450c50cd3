#include "trtspec/suffix_tree.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "suffix_tree_impl.hpp"

namespace trtspec {

using suffix::kNone;
using suffix::kRoot;
using suffix::Node;

namespace {
// Text of removed sequences below this is not worth a pass over the nodes.
constexpr std::int64_t kFewTokens = 1 << 16;
// What the record of a sequence weighs, in tokens.
constexpr std::int64_t kSequenceTokens = std::int64_t(sizeof(SuffixSequence) / sizeof(TokenId));
}  // namespace

SuffixSequence& SuffixTree::Impl::at(std::int32_t sequence) {
  if (sequence < 0 || sequence >= std::int32_t(sequences.size()) ||
      !sequences[std::size_t(sequence)].alive || sequences[std::size_t(sequence)].spare) {
    throw std::invalid_argument("suffix tree: no sequence " + std::to_string(sequence));
  }
  return sequences[std::size_t(sequence)];
}

// -- appending --------------------------------------------------------------------------------

void SuffixTree::Impl::append(std::int32_t sequence, TokenId token) {
  SuffixSequence& own = sequences[std::size_t(sequence)];
  const std::int32_t end = own.size();
  own.tokens.push_back(token);
  ++live_tokens;
  ++nodes[kRoot].count;
  // From the shortest suffix to the longest: where one makes another sequence's tail a node, the
  // walkers of that one stay those of its last starts.
  const std::int32_t first = std::max(end - own.walkers, end - max_depth + 1);
  std::int32_t walkers = 0;
  for (std::int32_t start = end; start >= first; --start) {
    const std::int32_t from = start == end ? kRoot : own.ring[std::size_t(start & mask)];
    const std::int32_t to = step(sequence, start, from, token);
    if (to == kNone) continue;
    own.ring[std::size_t(start & mask)] = to;
    ++walkers;
  }
  own.walkers = walkers;
}

// The walker of the window from `start` goes on by a token; kNone if it is now in its own tail.
std::int32_t SuffixTree::Impl::step(std::int32_t sequence, std::int32_t start, std::int32_t node,
                                    TokenId token) {
  const std::int32_t child = nodes.find_child(node, token);
  if (child == kNone) {
    make_tail(sequence, start, node, token);
    return kNone;
  }
  // With the walker gone no window would end at `node`, whose only child has all the others.
  if (node != kRoot && nodes[child].next == kNone && nodes[node].first_child == child &&
      nodes[child].count == nodes[node].count - 1) {
    return slide(sequence, node, child);
  }
  return enter(sequence, child);
}

void SuffixTree::Impl::make_tail(std::int32_t sequence, std::int32_t start, std::int32_t parent,
                                 TokenId token) {
  const std::int32_t last = sequences[std::size_t(sequence)].size() - 1;
  Node& p = nodes[parent];
  if (parent != kRoot && p.count == 1) {  // only this window comes here
    p.seq = sequence;
    p.pos = last - p.len;
    p.start = start;
    p.len = 0;
    return;
  }
  Node tail{};
  tail.count = 1;
  tail.start = start;
  tail.seq = sequence;
  tail.pos = last;
  tail.token = token;
  const std::int32_t made = nodes.make(tail);
  nodes.add_child(parent, made);
}

// The lower end of `node` moves down the edge to its only child by one token.
std::int32_t SuffixTree::Impl::slide(std::int32_t sequence, std::int32_t node, std::int32_t child) {
  const std::int32_t size = sequences[std::size_t(sequence)].size();
  if (nodes[node].wide) nodes.narrow(node);
  if (length(child) == 1) {
    if (nodes.is_tail(child)) settle(child);
    nodes[child].count = nodes[node].count;
    absorb(child, node);
    Node& c = nodes[child];
    c.seq = sequence;
    c.pos = size - c.len;
    return child;
  }
  Node& n = nodes[node];
  Node& c = nodes[child];
  ++n.len;
  n.seq = sequence;
  n.pos = size - n.len;
  ++c.pos;
  if (c.len != 0) --c.len;
  c.token = *edge(child);
  return node;
}

// The walker takes the first token of the edge to `child`, where other edges or ends are beside it.
std::int32_t SuffixTree::Impl::enter(std::int32_t sequence, std::int32_t child) {
  const std::int32_t last = sequences[std::size_t(sequence)].size() - 1;
  if (length(child) == 1) {
    if (nodes.is_tail(child)) settle(child);
  } else {
    Node upper{};
    upper.count = nodes[child].count;
    upper.token = nodes[child].token;
    upper.len = 1;
    const std::int32_t made = nodes.make(upper);
    Node& c = nodes[child];
    ++c.pos;
    if (c.len != 0) --c.len;
    nodes.insert_above(child, made, *edge(child));
    child = made;
  }
  Node& c = nodes[child];
  c.seq = sequence;
  c.pos = last;
  nodes.increment(child);
  return child;
}

// A tail becomes a node because another window comes to its end, too.
void SuffixTree::Impl::settle(std::int32_t tail) {
  Node& t = nodes[tail];
  SuffixSequence& owner = sequences[std::size_t(t.seq)];
  const std::int32_t start = t.start;
  t.len = std::uint16_t(length(tail));
  t.first_child = kNone;
  if (owner.open && owner.size() - start < max_depth) {
    owner.ring[std::size_t(start & mask)] = tail;
    ++owner.walkers;
  }
}

// `child`, the only one of `node` and with the count of `node`, takes its edge and its place.
void SuffixTree::Impl::absorb(std::int32_t child, std::int32_t node) {
  Node& n = nodes[node];
  Node& c = nodes[child];
  if (n.wide) nodes.narrow(node);
  c.pos -= n.len;  // whatever text a node points to has the whole path down to it
  if (c.len != 0) c.len = std::uint16_t(c.len + n.len);
  c.token = n.token;
  nodes.replace(node, child);
  nodes.free(node);
}

void SuffixTree::Impl::open(std::int32_t sequence) {
  SuffixSequence& own = sequences[std::size_t(sequence)];
  own.ring.reserve(std::size_t(mask) + 1);
  while (own.ring.size() <= std::size_t(mask)) own.ring.push_back(kNone);
  own.walkers = 0;
  const std::int32_t size = own.size();
  for (std::int32_t start = size - 1; start > std::max(size - max_depth, -1); --start) {
    Place place{};
    find(own.tokens.data() + start, size - start, place);
    if (nodes.is_tail(place.node)) break;  // its own, and so are those of all longer suffixes
    own.ring[std::size_t(start & mask)] = place.node;
    ++own.walkers;
  }
  own.open = true;
}

// -- removing ---------------------------------------------------------------------------------

void SuffixTree::Impl::remove(std::int32_t sequence) {
  SuffixSequence& own = sequences[std::size_t(sequence)];
  for (std::int32_t start = 0; start < own.size(); ++start) remove_window(own, start);
  own.alive = own.open = false;
  own.ring = {};
  own.tokens.shrink();
  live_tokens -= own.size();
  dead_tokens += own.size() + kSequenceTokens;
  if (dead_tokens > live_tokens + kFewTokens) compact();
}

void SuffixTree::Impl::remove_window(const SuffixSequence& own, std::int32_t start) {
  const std::int32_t end = std::min(start + max_depth, own.size());
  --nodes[kRoot].count;
  std::int32_t node = kRoot;
  for (std::int32_t at = start; at < end;) {
    const std::int32_t child = nodes.find_child(node, own.tokens[std::size_t(at)]);
    if (nodes[child].count == 1) {
      nodes.remove_child(node, child);
      nodes.free(child);
      break;
    }
    at += nodes[child].len;
    nodes.decrement(child);
    node = child;
  }
  if (node == kRoot || !nodes.has_sole_child(node)) return;
  const std::int32_t child = nodes[node].first_child;
  if (nodes[child].count == nodes[node].count) absorb(child, node);
}

// -- the text of removed sequences ------------------------------------------------------------

// Nodes point to the text of the last window that passed, which mostly is a recent one. Where it is
// gone, a node below often has a living one; else the path is copied.
void SuffixTree::Impl::compact() {
  for (SuffixSequence& sequence : sequences) {
    if (sequence.spare) sequence.alive = false;
  }
  std::int32_t spare = kNone;
  for (std::int32_t i = kRoot + 1; i < nodes.end(); ++i) {
    if (!nodes.in_use(i) || sequences[std::size_t(nodes[i].seq)].alive || borrow(i)) continue;
    if (spare == kNone) {
      spare = std::int32_t(sequences.size());
      sequences.emplace_back();
      sequences.back().spare = true;
    }
    save_path(i, spare);
  }
  unused.clear();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].alive) continue;
    sequences[i] = {};
    sequences[i].alive = false;
    unused.push_back(std::int32_t(i));
  }
  if (spare != kNone) sequences[std::size_t(spare)].tokens.shrink();
  dead_tokens = 0;
}

// Points `node` to a living text that a node below it points to; false if there is none.
bool SuffixTree::Impl::borrow(std::int32_t node) {
  std::int32_t above = 0;
  for (std::int32_t i = node; i != kNone; i = nodes.first_child(i)) {
    if (i != node && sequences[std::size_t(nodes[i].seq)].alive) {
      nodes[node].seq = nodes[i].seq;
      nodes[node].pos = nodes[i].pos - above;
      return true;
    }
    above += length(i);
  }
  return false;
}

// Copies the path from the root through `node` to its first leaf, and points the nodes on it there.
void SuffixTree::Impl::save_path(std::int32_t node, std::int32_t spare) {
  std::int32_t leaf = node;
  while (nodes.first_child(leaf) != kNone) leaf = nodes.first_child(leaf);
  std::vector<std::int32_t> chain;
  for (std::int32_t i = leaf; i != kRoot; i = nodes[i].parent) chain.push_back(i);
  suffix::Block<TokenId>& tokens = sequences[std::size_t(spare)].tokens;
  for (std::size_t k = chain.size(); k-- > 0;) {
    const std::int32_t i = chain[k];
    const std::int32_t pos = std::int32_t(tokens.size());
    for (std::int32_t j = 0; j < nodes[i].len; ++j) {
      const TokenId token = edge(i)[j];  // a copy: it may come from this very text
      tokens.push_back(token);
    }
    if (sequences[std::size_t(nodes[i].seq)].alive) continue;
    nodes[i].seq = spare;
    nodes[i].pos = pos;
  }
}

// -- the interface ----------------------------------------------------------------------------

SuffixTree::SuffixTree(std::int32_t max_depth) {
  if (max_depth < 1 || max_depth > kMaxDepth) {
    throw std::invalid_argument("suffix tree: max_depth=" + std::to_string(max_depth) +
                                " must be between 1 and " + std::to_string(kMaxDepth));
  }
  impl_ = std::make_unique<Impl>(max_depth);
}
SuffixTree::~SuffixTree() = default;
SuffixTree::SuffixTree(SuffixTree&&) noexcept = default;
SuffixTree& SuffixTree::operator=(SuffixTree&&) noexcept = default;

std::int32_t SuffixTree::add_sequence() {
  std::int32_t sequence = std::int32_t(impl_->sequences.size());
  if (impl_->unused.empty()) {
    impl_->sequences.emplace_back();
  } else {
    sequence = impl_->unused.back();
    impl_->unused.pop_back();
    impl_->sequences[std::size_t(sequence)] = {};
  }
  return sequence;
}

void SuffixTree::append(std::int32_t sequence, std::span<const TokenId> tokens) {
  SuffixSequence& own = impl_->at(sequence);
  for (const TokenId token : tokens) {
    if (token < 0) {
      throw std::invalid_argument("suffix tree: token " + std::to_string(token) + " is negative");
    }
  }
  if (tokens.size() > std::size_t(INT32_MAX / 2 - own.size())) {
    throw std::invalid_argument("suffix tree: the sequence is too long");
  }
  if (!own.open) impl_->open(sequence);
  for (const TokenId token : tokens) impl_->append(sequence, token);
}

void SuffixTree::close(std::int32_t sequence) {
  SuffixSequence& own = impl_->at(sequence);
  own.open = false;
  own.walkers = 0;
  own.ring = {};
  own.tokens.shrink();
}

void SuffixTree::remove(std::int32_t sequence) {
  impl_->at(sequence);
  impl_->remove(sequence);
}

std::span<const TokenId> SuffixTree::text(std::int32_t sequence) const {
  const SuffixSequence& own = std::as_const(*impl_).at(sequence);
  return {own.tokens.data(), own.tokens.size()};
}

std::int64_t SuffixTree::count(std::span<const TokenId> string) const {
  if (string.size() > std::size_t(impl_->max_depth)) return 0;
  Impl::Place place{};
  const bool found = impl_->find(string.data(), std::int32_t(string.size()), place);
  return found ? impl_->nodes[place.node].count : 0;
}

SuffixDraft SuffixTree::speculate(std::span<const TokenId> context, const SuffixOptions& options,
                                  std::int32_t sequence) const {
  if (sequence != kNone) std::as_const(*impl_).at(sequence);
  return impl_->speculate(context, options, sequence);
}

std::int64_t SuffixTree::num_tokens() const { return impl_->live_tokens; }
std::int64_t SuffixTree::num_nodes() const { return impl_->nodes.num_used(); }

std::size_t SuffixTree::memory_bytes() const {
  std::size_t bytes =
      sizeof(Impl) + impl_->nodes.bytes() + impl_->sequences.capacity() * sizeof(SuffixSequence);
  for (const SuffixSequence& sequence : impl_->sequences) {
    bytes += sequence.tokens.bytes() + sequence.ring.bytes();
  }
  return bytes;
}

void SuffixTree::compact() { impl_->compact(); }
void SuffixTree::check() const { impl_->check(); }

}  // namespace trtspec
