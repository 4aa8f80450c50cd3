// The nodes of a SuffixTree: an arena, lists of children in order of falling count, and a hash
// table for the nodes that have many.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#include "trtspec/suffix_tree.hpp"

namespace trtspec::suffix {

constexpr std::int32_t kNone = -1;
constexpr std::int32_t kRoot = 0;
constexpr int kWideChildren = 8;  // more than these are found by the hash table

// A growing array of plain values. Grows by realloc, which moves pages instead of copying large
// blocks, and does not touch what is not used yet.
template <typename T>
class Block {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Block() = default;
  Block(Block&& other) noexcept
      : data_(other.data_), size_(other.size_), capacity_(other.capacity_) {
    other.data_ = nullptr;
    other.size_ = other.capacity_ = 0;
  }
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Block() { std::free(data_); }

  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return capacity_ * sizeof(T); }
  void push_back(const T& value) {
    if (size_ == capacity_) reserve(capacity_ + capacity_ / 2 + 16);
    data_[size_++] = value;
  }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) set_capacity(capacity);
  }
  void shrink() {
    if (size_ < capacity_) set_capacity(size_);
  }

 private:
  void set_capacity(std::size_t capacity) {
    if (capacity == 0) {
      std::free(data_);
      data_ = nullptr;
    } else {
      T* grown = static_cast<T*>(std::realloc(data_, capacity * sizeof(T)));
      if (grown == nullptr) throw std::bad_alloc();
      data_ = grown;
    }
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// (node, value) -> node, open addressing with linear probing, at most 3/4 full.
class NodeMap {
 public:
  std::int32_t find(std::uint32_t high, std::uint32_t low) const {
    if (size_ == 0) return kNone;
    for (std::size_t i = slot(high, low);; i = (i + 1) & mask_) {
      const Entry& e = entries_[i];
      if (e.node == kNone) return kNone;
      if (e.high == high && e.low == low) return e.node;
    }
  }
  void set(std::uint32_t high, std::uint32_t low, std::int32_t node);
  void erase(std::uint32_t high, std::uint32_t low);
  std::size_t bytes() const { return entries_.bytes(); }

 private:
  struct Entry {
    std::uint32_t high, low;
    std::int32_t node;
  };
  std::size_t slot(std::uint32_t high, std::uint32_t low) const {
    const std::uint64_t key = (std::uint64_t(high) << 32 | low) * 0x9E3779B97F4A7C15ull;
    return std::size_t(key >> 32 ^ key >> 17) & mask_;
  }
  void grow();

  Block<Entry> entries_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
};

// A node is an edge with the position at its lower end. Its `len` tokens are those of sequence
// `seq` from `pos` on, where the whole path down to the node stands.
//
// A *tail* (len 0) has count 1: it is the one window that starts at `start` of `seq`, and it ends
// where that window does, so it grows with the text while nobody touches it.
//
// Siblings are a list; `prev` of the first one is the last one. The children of the root are in
// the hash table alone, and have no order.
struct Node {
  std::int32_t count;
  std::int32_t parent;
  union {
    std::int32_t first_child;
    std::int32_t start;  // of a tail
  };
  std::int32_t prev, next;
  std::int32_t seq, pos;
  TokenId token;  // the first of the edge
  std::uint16_t len;
  std::uint16_t wide;  // its children are in the hash table as well
};
static_assert(sizeof(Node) == 36);

class Nodes {
 public:
  Nodes();

  Node& operator[](std::int32_t i) { return nodes_[std::size_t(i)]; }
  const Node& operator[](std::int32_t i) const { return nodes_[std::size_t(i)]; }
  std::int32_t end() const { return std::int32_t(nodes_.size()); }
  bool in_use(std::int32_t i) const { return nodes_[std::size_t(i)].count > 0; }
  std::int64_t num_used() const { return num_used_; }
  std::size_t bytes() const { return nodes_.bytes() + map_.bytes(); }

  bool is_tail(std::int32_t i) const { return (*this)[i].len == 0 && i != kRoot; }
  std::int32_t first_child(std::int32_t i) const {
    return is_tail(i) ? kNone : (*this)[i].first_child;
  }
  bool has_sole_child(std::int32_t i) const {
    const std::int32_t child = (*this)[i].first_child;
    return child != kNone && (*this)[child].next == kNone;
  }
  // `parent` is no tail.
  std::int32_t find_child(std::int32_t parent, TokenId token) const {
    const Node& p = (*this)[parent];
    if (p.wide) return map_.find(std::uint32_t(parent), std::uint32_t(token));
    std::int32_t child = p.first_child;
    while (child != kNone && (*this)[child].token != token) child = (*this)[child].next;
    return child;
  }

  std::int32_t make(const Node& node);
  // The node must have been taken out of its parent's children.
  void free(std::int32_t i);
  // A child of count 1, which becomes the first of that count.
  void add_child(std::int32_t parent, std::int32_t child);
  void remove_child(std::int32_t parent, std::int32_t child);
  // `fresh` takes the place of `old`, whose count and first token it has.
  void replace(std::int32_t old, std::int32_t fresh);
  // `upper` replaces `lower` and has it as its only child, whose edge loses its first token.
  void insert_above(std::int32_t lower, std::int32_t upper, TokenId lower_token);
  // Counts of children of any node but the root keep the order of the list.
  void increment(std::int32_t child);
  void decrement(std::int32_t child);
  // A wide node whose children have become few is one no more.
  void narrow(std::int32_t parent);
  // The first child of a count, as the hash table of a wide node has it; for checks.
  std::int32_t group(std::int32_t parent, std::int32_t count) const {
    return map_.find(std::uint32_t(parent) | kGroup, std::uint32_t(count));
  }

 private:
  static constexpr std::uint32_t kGroup = 0x80000000u;

  void widen(std::int32_t parent);
  void unlink(Node& parent, std::int32_t child);
  void insert_before(Node& parent, std::int32_t child, std::int32_t before);
  void leave_group(std::int32_t parent, std::int32_t child);
  void join_group(std::int32_t parent, std::int32_t child) {
    map_.set(std::uint32_t(parent) | kGroup, std::uint32_t((*this)[child].count), child);
  }

  Block<Node> nodes_;
  NodeMap map_;
  std::int32_t free_ = kNone;
  std::int64_t num_used_ = 0;
};

}  // namespace trtspec::suffix
