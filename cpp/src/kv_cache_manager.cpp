#include "trtspec/kv_cache_manager.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv_reuse.hpp"

namespace trtspec {

namespace {

using Tokens = std::span<const std::int64_t>;

using kv_reuse::CachedBlocks;
using kv_reuse::Gap;
using kv_reuse::kNoBlock;
using kv_reuse::kNoPrefix;
using kv_reuse::ReuseTable;

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("KV cache: ") + what);
}

void require_of(bool condition, std::int64_t request, const char* what) {
  if (!condition) {
    throw std::logic_error("KV cache: request " + std::to_string(request) + " " + what);
  }
}

std::int64_t at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) {
    throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) +
                                " of a KV cache must be at least " + std::to_string(least));
  }
  return value;
}

// Quotient rounded up, for a dividend of 0 or more.
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// num_behind: leading blocks that are kNoBlock. num_offered: those that were offered for reuse.
// prefix: identity of what lies before the next one to be offered.
struct Sequence {
  std::vector<std::int32_t> blocks;
  std::int64_t num_behind = 0;
  std::int64_t num_offered = 0;
  std::int64_t prefix = kNoPrefix;
  std::int64_t absent = 0;
  std::int64_t committed = 0;
};

}  // namespace

struct KVCacheManager::Impl {
  Impl(std::int64_t num_blocks, std::int64_t block_size, bool enable_reuse, std::int64_t lookahead,
       std::int64_t window)
      : num_blocks(at_least("num_blocks", num_blocks, 1)),
        block_size(at_least("block_size", block_size, 1)),
        lookahead(at_least("lookahead", lookahead, 0)),
        window(at_least("window", window, 0)),
        enable_reuse(enable_reuse),
        cached(checked_count(num_blocks)),
        references(std::size_t(num_blocks), 0),
        table(enable_reuse ? num_blocks : 0, block_size + lookahead) {
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

  Sequence& sequence(std::int64_t request) {
    const auto found = sequences.find(request);
    require_of(found != sequences.end(), request, "has not begun");
    return found->second;
  }
  const Sequence& sequence(std::int64_t request) const {
    return const_cast<Impl*>(this)->sequence(request);
  }

  bool reusable(std::int32_t block) const { return enable_reuse && table.contains(block); }
  std::int64_t num_free() const { return std::int64_t(free.size()) + cached.size(); }

  // Blocks of the longest cached prefix that leaves at least one token to compute.
  std::vector<std::int32_t> find(Tokens tokens) const {
    std::vector<std::int32_t> found;
    if (!enable_reuse || table.size() == 0) return found;
    const std::int64_t longest =
        std::int64_t(tokens.size()) - std::max<std::int64_t>(lookahead, 1);
    std::int64_t prefix = kNoPrefix;
    for (std::int64_t begin = 0; begin + block_size <= longest; begin += block_size) {
      const std::int32_t block = table.find(prefix, key_at(tokens, begin));
      if (block == kNoBlock) break;
      found.push_back(block);
      prefix = table.prefix(block);
    }
    return found;
  }

  // The start of a sequence whose next row is that of token `end`: what is held of those before, also
  // behind absent ones. Of several gaps the shortest is taken.
  Sequence find_behind(Tokens tokens, std::int64_t end) const {
    Sequence found{.absent = end};
    if (!enable_reuse || end == 0) return found;
    const std::int64_t last =
        std::min(end, std::int64_t(tokens.size()) - lookahead) - block_size;  // that a block begins at
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

  // Starts a sequence on found.blocks, which are in the table.
  void start(std::int64_t request, Sequence found) {
    found.num_offered = std::int64_t(found.blocks.size());
    found.committed = found.num_offered * block_size;
    for (std::int32_t& block : found.blocks) {
      if (found.num_behind < behind(found.committed)) {
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
  void publish(Sequence& sequence, Tokens tokens, std::int64_t first, std::int64_t num_full) {
    for (std::int64_t& i = sequence.num_offered; i < num_full; ++i) {
      const std::int32_t block =
          table.find_or_add(sequence.prefix, key_at(tokens, i * block_size - first),
                            sequence.blocks[std::size_t(i)]);
      sequence.prefix = table.prefix(block);
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
    return block;
  }

  // Lets go of the blocks after the first num_kept. The deepest go first, so that among the cached
  // ones a block is evicted before the prefix without which it cannot be found.
  void drop_blocks(Sequence& sequence, std::int64_t num_kept) {
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

  // Blocks that no row after the first `rows` sees.
  std::int64_t behind(std::int64_t rows) const {
    return window == 0 ? 0 : std::max<std::int64_t>(rows - window + 1, 0) / block_size;
  }

  // Lets go of the blocks behind the window of the row after the first `rows`.
  void drop_behind(Sequence& sequence, std::int64_t rows) {
    for (; sequence.num_behind < behind(rows); ++sequence.num_behind) {
      release(std::exchange(sequence.blocks[std::size_t(sequence.num_behind)], kNoBlock));
    }
  }

  std::int64_t num_blocks;
  std::int64_t block_size;
  std::int64_t lookahead;
  std::int64_t window;
  bool enable_reuse;
  std::vector<std::int32_t> free;  // a stack: the lowest block first
  CachedBlocks cached;
  std::vector<std::int32_t> references;
  ReuseTable table;
  std::unordered_map<std::int64_t, Sequence> sequences;
};

KVCacheManager::KVCacheManager(std::int64_t num_blocks, std::int64_t block_size, bool enable_reuse,
                               std::int64_t lookahead, std::int64_t window)
    : impl_(std::make_unique<Impl>(num_blocks, block_size, enable_reuse, lookahead, window)) {}
KVCacheManager::~KVCacheManager() = default;
KVCacheManager::KVCacheManager(KVCacheManager&&) noexcept = default;
KVCacheManager& KVCacheManager::operator=(KVCacheManager&&) noexcept = default;

std::int64_t KVCacheManager::num_blocks() const { return impl_->num_blocks; }
std::int64_t KVCacheManager::block_size() const { return impl_->block_size; }
std::int64_t KVCacheManager::window() const { return impl_->window; }
bool KVCacheManager::enable_reuse() const { return impl_->enable_reuse; }
std::int64_t KVCacheManager::num_free_blocks() const { return impl_->num_free(); }

std::int64_t KVCacheManager::rows_held(std::int64_t total, std::int64_t step) const {
  const Impl& m = *impl_;
  // A block that the window cuts, one that is not full, and one that waits to be offered.
  const std::int64_t most = m.window + 3 * m.block_size + m.lookahead + step;
  return m.window == 0 ? total : std::min(total, most);
}

std::int64_t KVCacheManager::match(Tokens tokens) const {
  return std::int64_t(impl_->find(tokens).size()) * impl_->block_size;
}

void KVCacheManager::begin(std::int64_t request, Tokens tokens, std::int64_t num_cached) {
  Impl& m = *impl_;
  require_of(!m.sequences.contains(request), request, "has begun already");
  Sequence sequence;
  if (num_cached != 0) {
    sequence.blocks = m.find(tokens);
    require_of(num_cached > 0 && num_cached % m.block_size == 0 &&
                   num_cached / m.block_size <= std::int64_t(sequence.blocks.size()),
               request, "begins with more than the cached prefix");
    sequence.blocks.resize(std::size_t(num_cached / m.block_size));
    sequence.prefix = m.table.prefix(sequence.blocks.back());
  }
  m.start(request, std::move(sequence));
}

void KVCacheManager::begin_behind(std::int64_t request, Tokens tokens, std::int64_t end) {
  Impl& m = *impl_;
  require_of(!m.sequences.contains(request), request, "has begun already");
  require_of(end >= 0 && end < std::max<std::int64_t>(std::int64_t(tokens.size()), 1), request,
             "begins behind tokens that it does not have");
  m.start(request, m.find_behind(tokens, end));
}

std::int64_t KVCacheManager::absent(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).absent;
}

std::int64_t KVCacheManager::committed(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).committed;
}

std::int64_t KVCacheManager::offered(std::int64_t request) const {
  const Sequence& sequence = std::as_const(*impl_).sequence(request);
  return impl_->enable_reuse ? sequence.num_offered * impl_->block_size : sequence.committed;
}

std::vector<std::pair<std::int64_t, std::int64_t>> KVCacheManager::committed_lengths() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const auto& [request, sequence] : impl_->sequences) {
    lengths.emplace_back(request, sequence.committed);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

std::span<const std::int32_t> KVCacheManager::block_table(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).blocks;
}

std::int64_t KVCacheManager::slot(std::int64_t request, std::int64_t position) const {
  const std::span<const std::int32_t> blocks = block_table(request);
  const std::int64_t index = position / impl_->block_size;
  require_of(position >= 0 && index < std::int64_t(blocks.size()) &&
                 blocks[std::size_t(index)] != kNoBlock,
             request, "has no block for that position");
  return blocks[std::size_t(index)] * impl_->block_size + position % impl_->block_size;
}

std::int64_t KVCacheManager::room(std::int64_t request) const {
  const auto held = std::int64_t(std::as_const(*impl_).sequence(request).blocks.size());
  return (held + impl_->num_free()) * impl_->block_size;
}

bool KVCacheManager::reserve(std::int64_t request, std::int64_t num_tokens) {
  Impl& m = *impl_;
  std::vector<std::int32_t>& blocks = m.sequence(request).blocks;
  const std::int64_t missing =
      ceil_div(std::max<std::int64_t>(num_tokens, 0), m.block_size) - std::int64_t(blocks.size());
  if (missing <= 0) return true;
  if (missing > m.num_free()) return false;
  for (std::int64_t i = 0; i < missing; ++i) {
    const std::int32_t block = m.take_block();
    m.references[std::size_t(block)] = 1;
    blocks.push_back(block);
  }
  return true;
}

void KVCacheManager::commit(std::int64_t request, Tokens tokens, std::int64_t first,
                            std::int64_t num_committed, bool keep_surplus) {
  Impl& m = *impl_;
  Sequence& sequence = m.sequence(request);
  first -= sequence.absent;  // rows from here on
  const std::int64_t known = first + std::int64_t(tokens.size());
  require_of(num_committed >= sequence.committed, request, "cannot commit backwards");
  require_of(num_committed <= std::int64_t(sequence.blocks.size()) * m.block_size, request,
             "commits beyond the reserved rows");
  require_of(first >= -sequence.absent && first <= offered(request), request,
             "commits without the tokens after the offered ones");
  require_of(num_committed <= known, request, "commits rows whose tokens are not verified");
  sequence.committed = num_committed;
  if (m.enable_reuse) {
    m.publish(sequence, tokens, first, std::min(num_committed, known - m.lookahead) / m.block_size);
  }
  if (!keep_surplus) m.drop_blocks(sequence, ceil_div(num_committed, m.block_size));
  m.drop_behind(sequence, offered(request));
}

void KVCacheManager::free(std::int64_t request) {
  impl_->drop_blocks(impl_->sequence(request), 0);
  impl_->sequences.erase(request);
}

void KVCacheManager::check_invariants() const {
  const Impl& m = *impl_;
  std::vector<std::int32_t> holders(std::size_t(m.num_blocks), 0);
  for (const auto& [request, sequence] : m.sequences) {
    const auto held = std::int64_t(sequence.blocks.size());
    const std::int64_t num_full = sequence.committed / m.block_size;
    require_of(sequence.committed >= 0 && sequence.committed <= held * m.block_size, request,
               "committed rows that are not reserved");
    require_of(sequence.num_offered <= num_full, request,
               "has a prefix that is not committed");
    std::unordered_set<std::int32_t> seen;
    for (std::int64_t i = 0; i < held; ++i) {
      const std::int32_t block = sequence.blocks[std::size_t(i)];
      if (i < sequence.num_behind) {
        require_of(block == kNoBlock, request, "holds a block behind its window");
        continue;
      }
      require_of(block >= 0 && block < m.num_blocks, request, "has a block that is not there");
      require_of(seen.insert(block).second, request, "has a block twice");
      ++holders[std::size_t(block)];
      if (i < num_full) continue;  // else it writes there
      require_of(m.references[std::size_t(block)] == 1, request, "writes to a shared block");
      require_of(!m.reusable(block), request, "writes to a reusable block");
    }
  }
  require(holders == m.references, "reference counts differ from the block tables");
  std::vector<bool> is_free(std::size_t(m.num_blocks), false);
  for (const std::int32_t block : m.free) {
    require(!is_free[std::size_t(block)], "a block is free twice");
    is_free[std::size_t(block)] = true;
  }
  std::int64_t num_cached = 0;
  std::int64_t num_reusable = 0;
  for (std::int32_t block = 0; block < m.num_blocks; ++block) {
    const bool is_cached = m.cached.contains(block);
    const bool is_reusable = m.reusable(block);
    require(is_free[std::size_t(block)] + is_cached + (holders[std::size_t(block)] > 0) == 1,
            "a block is not exactly one of free, cached and referenced");
    require(!is_reusable || m.table.find_own(block) == block, "a block is under another key");
    require(!is_reusable || !is_free[std::size_t(block)], "a free block can be matched");
    require(is_reusable || !is_cached, "a cached block has no key");
    num_cached += is_cached;
    num_reusable += is_reusable;
  }
  require(num_cached == m.cached.size(), "the list of cached blocks is broken");
  require(num_reusable == m.table.size(), "the reuse table holds other blocks");
}

}  // namespace trtspec
