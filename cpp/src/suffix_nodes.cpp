#include "suffix_nodes.hpp"

#include <stdexcept>

namespace trtspec::suffix {

void NodeMap::set(std::uint32_t high, std::uint32_t low, std::int32_t node) {
  if ((size_ + 1) * 4 > entries_.size() * 3) grow();
  for (std::size_t i = slot(high, low);; i = (i + 1) & mask_) {
    Entry& e = entries_[i];
    if (e.node == kNone) {
      e = {high, low, node};
      ++size_;
      return;
    }
    if (e.high == high && e.low == low) {
      e.node = node;
      return;
    }
  }
}

void NodeMap::erase(std::uint32_t high, std::uint32_t low) {
  std::size_t hole = slot(high, low);
  while (entries_[hole].high != high || entries_[hole].low != low) hole = (hole + 1) & mask_;
  --size_;
  // Entries behind the hole move up if the hole lies between where they belong and where they are.
  for (std::size_t i = (hole + 1) & mask_; entries_[i].node != kNone; i = (i + 1) & mask_) {
    const std::size_t home = slot(entries_[i].high, entries_[i].low);
    if (((i - home) & mask_) >= ((i - hole) & mask_)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole].node = kNone;
}

void NodeMap::grow() {
  Block<Entry> old = std::move(entries_);
  const std::size_t capacity = old.size() == 0 ? 64 : old.size() * 2;
  entries_ = Block<Entry>();
  entries_.reserve(capacity);
  for (std::size_t i = 0; i < capacity; ++i) entries_.push_back({0, 0, kNone});
  mask_ = capacity - 1;
  size_ = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (old[i].node != kNone) set(old[i].high, old[i].low, old[i].node);
  }
}

Nodes::Nodes() {
  Node root{};
  root.parent = root.first_child = root.prev = root.next = kNone;
  root.wide = 1;
  nodes_.push_back(root);
}

std::int32_t Nodes::make(const Node& node) {
  ++num_used_;
  if (free_ == kNone) {
    if (nodes_.size() >= std::size_t(INT32_MAX)) throw std::length_error("suffix tree: too large");
    nodes_.push_back(node);
    return std::int32_t(nodes_.size()) - 1;
  }
  const std::int32_t i = free_;
  free_ = (*this)[i].next;
  (*this)[i] = node;
  return i;
}

void Nodes::free(std::int32_t i) {
  Node& node = (*this)[i];
  node.count = 0;
  node.next = free_;
  free_ = i;
  --num_used_;
}

void Nodes::unlink(Node& parent, std::int32_t child) {
  const Node& c = (*this)[child];
  if (c.next != kNone) {
    (*this)[c.next].prev = c.prev;
  } else if (parent.first_child != child) {
    (*this)[parent.first_child].prev = c.prev;  // a new last one
  }
  if (parent.first_child == child) {
    parent.first_child = c.next;
  } else {
    (*this)[c.prev].next = c.next;
  }
}

void Nodes::insert_before(Node& parent, std::int32_t child, std::int32_t before) {
  Node& c = (*this)[child];
  const std::int32_t first = parent.first_child;
  c.next = before;
  if (first == kNone) {
    c.prev = child;
    parent.first_child = child;
  } else if (before == kNone) {
    c.prev = (*this)[first].prev;
    (*this)[c.prev].next = child;
    (*this)[first].prev = child;
  } else {
    c.prev = (*this)[before].prev;
    (*this)[before].prev = child;
    if (before == first) {
      parent.first_child = child;
    } else {
      (*this)[c.prev].next = child;
    }
  }
}

void Nodes::leave_group(std::int32_t parent, std::int32_t child) {
  const Node& c = (*this)[child];
  if (group(parent, c.count) != child) return;
  if (c.next != kNone && (*this)[c.next].count == c.count) {
    join_group(parent, c.next);
  } else {
    map_.erase(std::uint32_t(parent) | kGroup, std::uint32_t(c.count));
  }
}

void Nodes::add_child(std::int32_t parent, std::int32_t child) {
  Node& p = (*this)[parent];
  Node& c = (*this)[child];
  c.parent = parent;
  if (parent == kRoot) {
    c.prev = c.next = kNone;
  } else if (p.wide) {
    insert_before(p, child, group(parent, c.count));
    join_group(parent, child);
  } else {
    std::int32_t before = kNone;
    int others = 0;
    for (std::int32_t i = p.first_child; i != kNone; i = (*this)[i].next, ++others) {
      if (before == kNone && (*this)[i].count <= c.count) before = i;
    }
    insert_before(p, child, before);
    if (others == kWideChildren) widen(parent);
    return;
  }
  map_.set(std::uint32_t(parent), std::uint32_t(c.token), child);
}

void Nodes::remove_child(std::int32_t parent, std::int32_t child) {
  Node& p = (*this)[parent];
  if (p.wide) map_.erase(std::uint32_t(parent), std::uint32_t((*this)[child].token));
  if (parent == kRoot) return;
  if (p.wide) leave_group(parent, child);
  unlink(p, child);
}

void Nodes::replace(std::int32_t old, std::int32_t fresh) {
  const Node& o = (*this)[old];
  Node& f = (*this)[fresh];
  const std::int32_t parent = o.parent;
  Node& p = (*this)[parent];
  f.parent = parent;
  f.next = o.next;
  f.prev = o.prev == old ? fresh : o.prev;
  if (p.wide) map_.set(std::uint32_t(parent), std::uint32_t(f.token), fresh);
  if (parent == kRoot) return;
  if (p.wide && group(parent, o.count) == old) join_group(parent, fresh);
  if (p.first_child == old) {
    p.first_child = fresh;
  } else {
    (*this)[o.prev].next = fresh;
  }
  if (o.next != kNone) {
    (*this)[o.next].prev = fresh;
  } else {
    (*this)[p.first_child].prev = fresh;
  }
}

void Nodes::insert_above(std::int32_t lower, std::int32_t upper, TokenId lower_token) {
  replace(lower, upper);
  Node& l = (*this)[lower];
  (*this)[upper].first_child = lower;
  l.parent = upper;
  l.prev = lower;
  l.next = kNone;
  l.token = lower_token;
}

void Nodes::increment(std::int32_t child) {
  Node& c = (*this)[child];
  const std::int32_t parent = c.parent;
  if (parent == kRoot) {
    ++c.count;
    return;
  }
  Node& p = (*this)[parent];
  if (p.wide) {
    const std::int32_t same = group(parent, c.count);  // the first of the count it leaves
    std::int32_t before = group(parent, c.count + 1);
    leave_group(parent, child);
    ++c.count;
    if (before == kNone) before = same;
    if (before != child) {
      unlink(p, child);
      insert_before(p, child, before);
    }
    join_group(parent, child);
    return;
  }
  ++c.count;
  std::int32_t before = child;
  while (before != p.first_child && (*this)[(*this)[before].prev].count <= c.count) {
    before = (*this)[before].prev;
  }
  if (before != child) {
    unlink(p, child);
    insert_before(p, child, before);
  }
}

void Nodes::decrement(std::int32_t child) {
  Node& c = (*this)[child];
  const std::int32_t parent = c.parent;
  if (parent != kRoot) {
    Node& p = (*this)[parent];
    if (p.wide) leave_group(parent, child);
    std::int32_t before = p.wide ? group(parent, c.count - 1) : kNone;
    if (before == kNone) {
      before = c.next;
      while (before != kNone && (*this)[before].count == c.count) before = (*this)[before].next;
    }
    if (before != c.next) {
      unlink(p, child);
      insert_before(p, child, before);
    }
  }
  --c.count;
  if (parent != kRoot && (*this)[parent].wide) join_group(parent, child);
}

void Nodes::widen(std::int32_t parent) {
  Node& p = (*this)[parent];
  p.wide = 1;
  std::int32_t count = 0;
  for (std::int32_t i = p.first_child; i != kNone; i = (*this)[i].next) {
    map_.set(std::uint32_t(parent), std::uint32_t((*this)[i].token), i);
    if ((*this)[i].count != count) join_group(parent, i);
    count = (*this)[i].count;
  }
}

void Nodes::narrow(std::int32_t parent) {
  Node& p = (*this)[parent];
  if (!p.wide) return;
  p.wide = 0;
  std::int32_t count = 0;
  for (std::int32_t i = p.first_child; i != kNone; i = (*this)[i].next) {
    map_.erase(std::uint32_t(parent), std::uint32_t((*this)[i].token));
    if ((*this)[i].count != count) {
      map_.erase(std::uint32_t(parent) | kGroup, std::uint32_t((*this)[i].count));
    }
    count = (*this)[i].count;
  }
}

}  // namespace trtspec::suffix
