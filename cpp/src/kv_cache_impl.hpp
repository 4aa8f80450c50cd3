// The books of a KVCacheManager: its blocks and states, and what of them is whose.
#pragma once
#include <trtspec/kv_cache_manager.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_reuse.hpp"
#include "state_slots.hpp"

namespace trtspec {

using Tokens = std::span<const std::int64_t>;

using kv_reuse::Gap;
using kv_reuse::kNoBlock;
using kv_reuse::kNoPrefix;
using kv_reuse::kNoSlot;
using kv_reuse::OldestFirst;
using kv_reuse::ReuseTable;
using kv_reuse::StateSlots;

inline void require_of(bool condition, std::int64_t request, const char* what) {
  if (!condition) {
    throw std::logic_error("KV cache: request " + std::to_string(request) + " " + what);
  }
}

inline std::int64_t at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) {
    throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) +
                                " of a KV cache must be at least " + std::to_string(least));
  }
  return value;
}

// Quotient rounded up, for a dividend of 0 or more.
inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// num_behind: blocks behind the sinks that are kNoBlock. num_offered: those that were offered for
// reuse. prefix: identity of what lies before the next one to be offered. source: the snapshot that
// it begins on. kept: those that its calls make, not published yet, with falling rows.
struct CachedSequence {
  std::vector<std::int32_t> blocks;
  std::int64_t num_behind = 0;
  std::int64_t num_offered = 0;
  std::int64_t prefix = kNoPrefix;
  std::int64_t absent = 0;
  std::int64_t committed = 0;
  std::int32_t state = kNoSlot;
  std::int32_t source = kNoSlot;
  std::vector<Snapshot> kept;
};

struct KVCacheManager::Impl {
  Impl(std::int64_t num_blocks, std::int64_t block_size, bool enable_reuse, std::int64_t lookahead,
       std::int64_t window, std::int64_t sinks, const StateSizes& state_sizes)
      : num_blocks(at_least("num_blocks", num_blocks, 1)),
        block_size(at_least("block_size", block_size, 1)),
        lookahead(at_least("lookahead", lookahead, 0)),
        window(at_least("window", window, 0)),
        sinks(at_least("sinks", sinks, 0)),
        enable_reuse(enable_reuse),
        cached(checked_count(num_blocks)),
        references(std::size_t(num_blocks), 0),
        table(enable_reuse ? num_blocks : 0, block_size + lookahead),
        states(state_sizes, num_blocks, block_size) {
    free.reserve(std::size_t(num_blocks));
    for (std::int64_t block = num_blocks; block-- > 0;) free.push_back(std::int32_t(block));
  }

  static std::int64_t checked_count(std::int64_t num_blocks) {
    if (num_blocks >= INT32_MAX) {
      throw std::invalid_argument("num_blocks=" + std::to_string(num_blocks) +
                                  " of a KV cache must be less than 2^31 - 1");
    }
    return num_blocks;
  }

  CachedSequence& sequence(std::int64_t request) {
    const auto found = sequences.find(request);
    require_of(found != sequences.end(), request, "has not begun");
    return found->second;
  }
  const CachedSequence& sequence(std::int64_t request) const {
    return const_cast<Impl*>(this)->sequence(request);
  }

  bool lacks_state(const CachedSequence& sequence) const {
    return states.keeps_states() && sequence.state == kNoSlot;
  }
  bool reusable(std::int32_t block) const { return enable_reuse && table.contains(block); }
  std::int64_t num_free() const { return std::int64_t(free.size()) + cached.size(); }

  // Blocks of the longest cached prefix, with a snapshot where there are states, that leaves at least
  // one token to compute.
  std::vector<std::int32_t> find(Tokens tokens, std::int64_t adapter) const {
    std::vector<std::int32_t> found;
    if (!enable_reuse || table.size() == 0) return found;
    const std::int64_t longest = std::int64_t(tokens.size()) - std::max<std::int64_t>(lookahead, 1);
    std::int64_t prefix = kv_reuse::root_of(adapter);
    for (std::int64_t begin = 0; begin + block_size <= longest; begin += block_size) {
      const std::int32_t block = table.find(prefix, key_at(tokens, begin));
      if (block == kNoBlock) break;
      found.push_back(block);
      prefix = table.prefix(block);
    }
    while (states.keeps_states() && !found.empty() && states.snapshot(found.back()) == kNoSlot) {
      found.pop_back();
    }
    return found;
  }

  // The start of a sequence whose next row is that of token `end`: what is held of those before, also
  // behind absent ones. Of several gaps the shortest is taken. States of texts with gaps are not found.
  CachedSequence find_behind(Tokens tokens, std::int64_t end, std::int64_t adapter) const {
    CachedSequence found{.prefix = kv_reuse::root_of(adapter)};
    found.absent = end;
    if (!enable_reuse || end == 0 || states.keeps_states()) return found;
    const std::int64_t last = std::min(end, std::int64_t(tokens.size()) - lookahead) -
                              block_size;  // that a block begins at
    std::int64_t position = 0;
    Gap gap(found.prefix);
    for (std::int64_t begin = 0; begin <= last;) {
      const std::int32_t block = table.find(gap.identity(), key_at(tokens, begin));
      if (block == kNoBlock) {
        gap.add(tokens.subspan(std::size_t(begin), std::size_t(block_size)));
        begin += block_size;
        continue;
      }
      found.absent -= block_size;
      found.blocks.push_back(block);
      found.prefix = table.prefix(block);
      gap = Gap(found.prefix);
      position = begin += block_size;
    }
    Gap rest(found.prefix);
    rest.add(tokens.subspan(std::size_t(position), std::size_t(end - position)));
    found.prefix = rest.identity();
    return found;
  }

  // The sequence has begun, or ends.
  void let_source_go(CachedSequence& sequence) {
    states.used(std::exchange(sequence.source, kNoSlot));
  }

  // Starts a sequence on found.blocks, which are in the table.
  void start(std::int64_t request, CachedSequence found) {
    found.num_offered = std::int64_t(found.blocks.size());
    found.committed = found.num_offered * block_size;
    if (states.keeps_states() && !found.blocks.empty()) {
      found.source = states.snapshot(found.blocks.back());
      states.use(found.source);
    }
    for (std::int64_t i = 0; i < found.num_offered; ++i) {
      std::int32_t& block = found.blocks[std::size_t(i)];
      if (i >= sinks && found.num_behind < behind(found.committed)) {
        ++found.num_behind;
        block = kNoBlock;
      } else if (references[std::size_t(block)]++ == 0) {
        cached.remove(block);
      }
    }
    sequences.emplace(request, std::move(found));
  }

  Tokens key_at(Tokens tokens, std::int64_t begin) const {
    return tokens.subspan(std::size_t(begin), std::size_t(block_size + lookahead));
  }

  // Offers blocks num_offered .. num_full - 1 of a sequence; tokens[0] is that of its row `first`.
  void publish(CachedSequence& sequence, Tokens tokens, std::int64_t first, std::int64_t num_full) {
    for (std::int64_t& i = sequence.num_offered; i < num_full; ++i) {
      const std::int32_t block = table.find_or_add(
          sequence.prefix, key_at(tokens, i * block_size - first), sequence.blocks[std::size_t(i)]);
      sequence.prefix = table.prefix(block);
      if (!sequence.kept.empty() && sequence.kept.back().rows == (i + 1) * block_size) {
        states.publish(block, sequence.kept.back().slot);
        sequence.kept.pop_back();
      }
    }
  }

  std::int32_t take_block() {
    if (!free.empty()) {
      const std::int32_t block = free.back();
      free.pop_back();
      return block;
    }
    const std::int32_t block = cached.oldest();
    cached.remove(block);
    table.remove(block);
    states.forget(block);
    return block;
  }

  // Lets go of the blocks after the first num_kept. The deepest go first, so that among the cached
  // ones a block is evicted before the prefix without which it cannot be found.
  void drop_blocks(CachedSequence& sequence, std::int64_t num_kept) {
    while (std::int64_t(sequence.blocks.size()) > num_kept) {
      const std::int32_t block = sequence.blocks.back();
      sequence.blocks.pop_back();
      if (block != kNoBlock) release(block);
    }
  }

  void release(std::int32_t block) {
    if (--references[std::size_t(block)] != 0) return;
    if (reusable(block)) {
      cached.append(block);
    } else {
      free.push_back(block);
    }
  }

  // Blocks behind the sinks that no row after the first `rows` sees.
  std::int64_t behind(std::int64_t rows) const {
    if (window == 0) return 0;
    const std::int64_t first_seen = std::max<std::int64_t>(rows - window + 1, 0) / block_size;
    return std::max<std::int64_t>(first_seen - sinks, 0);
  }

  // Lets go of the blocks behind the window of the row after the first `rows`.
  void drop_behind(CachedSequence& sequence, std::int64_t rows) {
    for (; sequence.num_behind < behind(rows); ++sequence.num_behind) {
      const auto next = std::size_t(sinks + sequence.num_behind);
      release(std::exchange(sequence.blocks[next], kNoBlock));
    }
  }

  std::int64_t num_blocks;
  std::int64_t block_size;
  std::int64_t lookahead;
  std::int64_t window;
  std::int64_t sinks;
  bool enable_reuse;
  std::vector<std::int32_t> free;  // a stack: the lowest block first
  OldestFirst cached;
  std::vector<std::int32_t> references;
  ReuseTable table;
  StateSlots states;
  std::unordered_map<std::int64_t, CachedSequence> sequences;
};

}  // namespace trtspec
