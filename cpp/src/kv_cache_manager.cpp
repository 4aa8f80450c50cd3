#include "trtspec/kv_cache_manager.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "kv_cache_impl.hpp"

namespace trtspec {

KVCacheManager::KVCacheManager(std::int64_t num_blocks, std::int64_t block_size, bool enable_reuse,
                               std::int64_t lookahead, std::int64_t window, std::int64_t sinks,
                               const StateSizes& states)
    : impl_(std::make_unique<Impl>(num_blocks, block_size, enable_reuse, lookahead, window, sinks,
                                   states)) {}
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
  const std::int64_t most = m.window + (m.sinks + 3) * m.block_size + m.lookahead + step;
  return m.window == 0 ? total : std::min(total, most);
}

std::int64_t KVCacheManager::match(Tokens tokens, std::int64_t adapter) const {
  return std::int64_t(impl_->find(tokens, adapter).size()) * impl_->block_size;
}

void KVCacheManager::begin(std::int64_t request, Tokens tokens, std::int64_t num_cached,
                           std::int64_t adapter) {
  Impl& m = *impl_;
  require_of(!m.sequences.contains(request), request, "has begun already");
  CachedSequence sequence{.prefix = kv_reuse::root_of(adapter)};
  if (num_cached != 0) {
    sequence.blocks = m.find(tokens, adapter);
    require_of(num_cached > 0 && num_cached % m.block_size == 0 &&
                   num_cached / m.block_size <= std::int64_t(sequence.blocks.size()),
               request, "begins with more than the cached prefix");
    sequence.blocks.resize(std::size_t(num_cached / m.block_size));
    sequence.prefix = m.table.prefix(sequence.blocks.back());
  }
  m.start(request, std::move(sequence));
}

void KVCacheManager::begin_behind(std::int64_t request, Tokens tokens, std::int64_t end,
                                  std::int64_t adapter) {
  Impl& m = *impl_;
  require_of(!m.sequences.contains(request), request, "has begun already");
  require_of(end >= 0 && end < std::max<std::int64_t>(std::int64_t(tokens.size()), 1), request,
             "begins behind tokens that it does not have");
  m.start(request, m.find_behind(tokens, end, adapter));
}

std::int64_t KVCacheManager::absent(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).absent;
}

std::int64_t KVCacheManager::committed(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).committed;
}

std::int64_t KVCacheManager::offered(std::int64_t request) const {
  const CachedSequence& sequence = std::as_const(*impl_).sequence(request);
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
  const CachedSequence& sequence = std::as_const(*impl_).sequence(request);
  if (impl_->lacks_state(sequence) && !impl_->states.has_free()) return 0;
  return (std::int64_t(sequence.blocks.size()) + impl_->num_free()) * impl_->block_size;
}

bool KVCacheManager::reserve(std::int64_t request, std::int64_t num_tokens) {
  Impl& m = *impl_;
  CachedSequence& sequence = m.sequence(request);
  std::vector<std::int32_t>& blocks = sequence.blocks;
  const std::int64_t missing =
      ceil_div(std::max<std::int64_t>(num_tokens, 0), m.block_size) - std::int64_t(blocks.size());
  const bool wants_state = num_tokens > 0 && m.lacks_state(sequence);
  if (missing > m.num_free() || (wants_state && !m.states.has_free())) return false;
  if (wants_state) sequence.state = m.states.take();
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
  CachedSequence& sequence = m.sequence(request);
  first -= sequence.absent;  // rows from here on
  const std::int64_t known = first + std::int64_t(tokens.size());
  require_of(num_committed >= sequence.committed, request, "cannot commit backwards");
  require_of(num_committed <= std::int64_t(sequence.blocks.size()) * m.block_size, request,
             "commits beyond the reserved rows");
  require_of(first >= -sequence.absent && first <= offered(request), request,
             "commits without the tokens after the offered ones");
  require_of(num_committed <= known, request, "commits rows whose tokens are not verified");
  // A draft may be committed as it is, for a while.
  if (num_committed > sequence.committed) m.let_source_go(sequence);
  sequence.committed = num_committed;
  if (m.enable_reuse) {
    m.publish(sequence, tokens, first, std::min(num_committed, known - m.lookahead) / m.block_size);
  }
  if (!keep_surplus) m.drop_blocks(sequence, ceil_div(num_committed, m.block_size));
  m.drop_behind(sequence, offered(request));
}

void KVCacheManager::free(std::int64_t request) {
  CachedSequence& sequence = impl_->sequence(request);
  impl_->let_source_go(sequence);
  impl_->drop_blocks(sequence, 0);
  impl_->states.give_back(sequence.state);
  for (const Snapshot& snapshot : sequence.kept) impl_->states.give_back(snapshot.slot);
  impl_->sequences.erase(request);
}

bool KVCacheManager::keeps_states() const { return impl_->states.keeps_states(); }

std::int32_t KVCacheManager::state(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).state;
}

std::int32_t KVCacheManager::source(std::int64_t request) const {
  return std::as_const(*impl_).sequence(request).source;
}

std::int64_t KVCacheManager::next_border(std::int64_t rows) const {
  return enable_reuse() ? impl_->states.next_border(rows) : KVCache::next_border(rows);
}

Snapshot KVCacheManager::keep(std::int64_t request, std::int64_t from, std::int64_t to) {
  const std::int64_t rows = next_border(from);
  if (rows > to) return {};
  std::vector<Snapshot>& kept = impl_->sequence(request).kept;
  const auto known = std::find_if(kept.begin(), kept.end(),
                                  [&](const Snapshot& each) { return each.rows == rows; });
  if (known != kept.end()) return *known;
  const std::int32_t slot = impl_->states.take_snapshot();
  if (slot == kNoSlot) return {};
  return *kept.insert(kept.begin(), {rows, slot});
}

}  // namespace trtspec
