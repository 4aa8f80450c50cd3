#include "trtspec/kv_cache_manager.hpp"

#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv_cache_impl.hpp"

namespace trtspec {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("KV cache: ") + what);
}

}  // namespace

void KVCacheManager::check_invariants() const {
  const Impl& m = *impl_;
  std::vector<std::int32_t> slots;
  std::vector<std::int32_t> holders(std::size_t(m.num_blocks), 0);
  for (const auto& [request, sequence] : m.sequences) {
    const auto held = std::int64_t(sequence.blocks.size());
    const std::int64_t num_full = sequence.committed / m.block_size;
    require_of(sequence.committed >= 0 && sequence.committed <= held * m.block_size, request,
               "committed rows that are not reserved");
    require_of(sequence.num_offered <= num_full, request, "has a prefix that is not committed");
    if (sequence.state != kNoSlot) slots.push_back(sequence.state);
    for (const Snapshot& snapshot : sequence.kept) slots.push_back(snapshot.slot);
    const bool may_lack = sequence.committed <= sequence.num_offered * m.block_size;  // it begins
    require_of(may_lack || !m.lacks_state(sequence), request, "has rows and no state");
    std::unordered_set<std::int32_t> seen;
    for (std::int64_t i = 0; i < held; ++i) {
      const std::int32_t block = sequence.blocks[std::size_t(i)];
      if (i >= m.sinks && i < m.sinks + sequence.num_behind) {
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
    require(is_reusable || m.states.snapshot(block) == kNoSlot, "a snapshot outlives its block");
    num_cached += is_cached;
    num_reusable += is_reusable;
  }
  require(num_cached == m.cached.size(), "the list of cached blocks is broken");
  require(num_reusable == m.table.size(), "the reuse table holds other blocks");
  m.states.check(std::move(slots));
}

}  // namespace trtspec
