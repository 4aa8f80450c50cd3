// What a KVCacheManager keeps of blocks that may be used again: in which order they are evicted, and
// under which prefix each is found.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trtspec::kv_reuse {

using Tokens = std::span<const std::int64_t>;

constexpr std::int32_t kNoBlock = -1;
constexpr std::int64_t kNoPrefix = 0;

// The identity of the empty prefix of texts that are read by an adapter: apart from those of blocks,
// which are positive, as good as never that of a gap, and not -1, from which no hash can begin.
inline std::int64_t root_of(std::int64_t adapter) {
  return adapter == 0 ? kNoPrefix : -1 - adapter;
}

// A step of the hash of tokens.
inline std::uint64_t mixed(std::uint64_t hash, std::int64_t token) {
  return (hash ^ (hash >> 32) ^ std::uint64_t(token)) * 0xd6e8feb86659fd93u;
}

// Where the hash of what follows a prefix begins: far from the ids of tokens. From a small one a
// token of that id would lead to 0, where further tokens of id 0 count for nothing.
inline std::uint64_t begun(std::int64_t prefix) {
  return 0x9e3779b97f4a7c15u * std::uint64_t(prefix + 1);
}

// Tokens behind a prefix that have no rows, and the identity of the prefix with them: that of the
// prefix where there are none, else a hash, apart from the identities of blocks, which are positive.
class Gap {
 public:
  explicit Gap(std::int64_t prefix) : prefix_(prefix), hash_(begun(prefix)) {}

  void add(Tokens tokens) {
    for (const std::int64_t token : tokens) hash_ = mixed(hash_, token);
    size_ += std::int64_t(tokens.size());
  }

  std::int64_t identity() const {
    return size_ == 0 ? prefix_ : -1 - std::int64_t((hash_ ^ (hash_ >> 32)) >> 1);
  }

 private:
  std::int64_t prefix_;
  std::uint64_t hash_;
  std::int64_t size_ = 0;
};

// Numbers below a limit, as of blocks that hold content of nobody, the oldest first: a list through
// arrays.
class OldestFirst {
 public:
  explicit OldestFirst(std::int64_t limit)
      : end_(std::int32_t(limit)),
        next_(std::size_t(limit) + 1, kNoBlock),
        previous_(std::size_t(limit) + 1, kNoBlock) {
    next_[std::size_t(end_)] = previous_[std::size_t(end_)] = end_;
  }

  std::int64_t size() const { return size_; }
  bool contains(std::int32_t number) const { return next_[std::size_t(number)] != kNoBlock; }
  std::int32_t oldest() const { return next_[std::size_t(end_)]; }

  void append(std::int32_t number) {
    const std::int32_t newest = previous_[std::size_t(end_)];
    next_[std::size_t(newest)] = previous_[std::size_t(end_)] = number;
    previous_[std::size_t(number)] = newest;
    next_[std::size_t(number)] = end_;
    ++size_;
  }

  void remove(std::int32_t number) {
    std::int32_t& next = next_[std::size_t(number)];
    std::int32_t& previous = previous_[std::size_t(number)];
    next_[std::size_t(previous)] = next;
    previous_[std::size_t(next)] = previous;
    next = previous = kNoBlock;
    --size_;
  }

 private:
  std::int32_t end_;  // the list's two ends meet in an entry behind the last number
  std::vector<std::int32_t> next_;
  std::vector<std::int32_t> previous_;
  std::int64_t size_ = 0;
};

// The reuse table: blocks by the prefix before them and their tokens, chains through arrays.
class ReuseTable {
 public:
  // width: tokens of a key.
  ReuseTable(std::int64_t num_blocks, std::int64_t width)
      : width_(std::size_t(width)),
        keys_(std::make_unique_for_overwrite<std::int64_t[]>(std::size_t(num_blocks) * width_)),
        entries_(std::size_t(num_blocks)) {
    std::size_t chains = 16;
    while (chains < std::size_t(num_blocks)) chains *= 2;
    chains_.assign(chains, kNoBlock);
  }

  std::int64_t size() const { return size_; }
  bool contains(std::int32_t block) const { return prefix(block) != kNoPrefix; }
  // Identity of the prefix that ends with the block; kNoPrefix for one that is not in the table.
  std::int64_t prefix(std::int32_t block) const { return entries_[std::size_t(block)].prefix; }

  std::int32_t find(std::int64_t before, Tokens tokens) const {
    return find_hashed(hash_of(before, tokens), before, tokens);
  }

  // The block that is found under the key of `block`; for check_invariants.
  std::int32_t find_own(std::int32_t block) const {
    const Entry& entry = entries_[std::size_t(block)];
    return find(entry.before, {key(block), width_});
  }

  // The block under that key; `block`, entered with a new identity, if there is none.
  std::int32_t find_or_add(std::int64_t before, Tokens tokens, std::int32_t block) {
    const std::uint64_t hash = hash_of(before, tokens);
    const std::int32_t found = find_hashed(hash, before, tokens);
    if (found != kNoBlock) return found;
    std::int32_t& chain = chains_[hash & (chains_.size() - 1)];
    entries_[std::size_t(block)] = {hash, before, ++last_prefix_, chain};
    std::copy(tokens.begin(), tokens.end(), keys_.get() + std::size_t(block) * width_);
    chain = block;
    ++size_;
    return block;
  }

  void remove(std::int32_t block) {
    Entry& entry = entries_[std::size_t(block)];
    std::int32_t* link = &chains_[entry.hash & (chains_.size() - 1)];
    while (*link != block) link = &entries_[std::size_t(*link)].next;
    *link = entry.next;
    entry = {};
    --size_;
  }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::int64_t before = kNoPrefix;  // identity of the prefix before the block
    std::int64_t prefix = kNoPrefix;  // and of the one it ends; kNoPrefix: not in the table
    std::int32_t next = kNoBlock;     // block in the same chain
  };

  const std::int64_t* key(std::int32_t block) const {
    return keys_.get() + std::size_t(block) * width_;
  }

  static std::uint64_t hash_of(std::int64_t before, Tokens tokens) {
    std::uint64_t hash = begun(before);
    for (const std::int64_t token : tokens) hash = mixed(hash, token);
    return hash ^ (hash >> 32);
  }

  std::int32_t find_hashed(std::uint64_t hash, std::int64_t before, Tokens tokens) const {
    std::int32_t block = chains_[hash & (chains_.size() - 1)];
    while (block != kNoBlock) {
      const Entry& entry = entries_[std::size_t(block)];
      if (entry.hash == hash && entry.before == before &&
          std::equal(tokens.begin(), tokens.end(), key(block))) {
        return block;
      }
      block = entry.next;
    }
    return kNoBlock;
  }

  std::size_t width_;
  std::unique_ptr<std::int64_t[]> keys_;  // [num_blocks, width]
  std::vector<Entry> entries_;            // of each block
  std::vector<std::int32_t> chains_;      // first block of each; a power of two
  std::int64_t last_prefix_ = kNoPrefix;
  std::int64_t size_ = 0;
};

}  // namespace trtspec::kv_reuse
