// KVCacheManager: which block of a paged KV cache belongs to whom. Bookkeeping only, no tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <trtspec/kv_cache.hpp>
#include <utility>
#include <vector>

namespace trtspec {

// Blocks of one cache: num_blocks of block_size token rows each.
//
// Every block is exactly one of: *free* (no content), *cached* (content of nobody, found by match,
// evicted least recently used first) or *referenced* by one or more sequences. Only blocks full of
// committed rows are ever shared; a sequence writes at and after its committed length only, hence
// only into blocks that are its own.
//
// Reuse is exact: a block is keyed by (identity of its prefix, its tokens), where every distinct
// prefix in the table has an identity of its own that is never used again. Tokens are compared, so
// a hash collision cannot join two prefixes, and a block is hashed once, when it becomes full. If
// two sequences commit equal blocks the first stays in the table; the second keeps its private copy
// and continues under the same prefix identity.
//
// With a window, no row sees more than that many tokens, its own included, and a sequence lets go of
// the blocks behind the window of its next row: their places in its table say -1. They stay cached,
// as others do that nobody holds, until they are evicted. A prefix is found as far as all its
// blocks, from the first on, are in the table. The first `sinks` blocks of a sequence are kept, as
// attention that sees a window alone misses what stood at the beginning (arXiv 2309.17453).
//
// A draft's sequence may *lack* tokens of its text: where the target begins behind more than the draft
// holds, nobody can make the rows between. They are absent: the rows that follow lie, and are found
// again, directly behind those that are held, as if the text went on there. All lengths and positions
// below but `end` count rows, so that token p of the text has row p - absent(request) from there on.
//
// A network may keep a state of each request beside its rows. A sequence has one from its first
// reservation to its end, without which it has no room. Of its prefix it can only begin on as much as
// a snapshot of the state reaches: one is kept for blocks at every border, so many apart, of which
// `keep` says in time that its calls will pass it. It is found as long as its block, and evicted with
// it, or for another, least recently used first.
//
// Rows of one text differ where another adapter made them: a text is found again under the adapter
// (Sequence::adapter) that it was read by, and under no other.
//
// Calls with an id that has not begun, or that break a condition below, throw std::logic_error.
class KVCacheManager final : public KVCache {
 public:
  // lookahead: how many tokens after a block its rows depend on (1 for feature drafters, whose row
  // p is made of the target's features at p and of token p + 1); they are part of its key.
  // window: see above; 0: rows see all. sinks: see above, in blocks. states: of a network that keeps
  // such.
  // Throws std::invalid_argument for sizes below 1 or a negative lookahead, window or sinks.
  KVCacheManager(std::int64_t num_blocks, std::int64_t block_size, bool enable_reuse = true,
                 std::int64_t lookahead = 0, std::int64_t window = 0, std::int64_t sinks = 0,
                 const StateSizes& states = {});
  ~KVCacheManager() override;
  KVCacheManager(KVCacheManager&&) noexcept;
  KVCacheManager& operator=(KVCacheManager&&) noexcept;

  std::int64_t num_blocks() const override;
  std::int64_t block_size() const override;
  // Token rows in the whole cache.
  std::int64_t capacity() const override { return num_blocks() * block_size(); }
  std::int64_t window() const override;
  bool enable_reuse() const override;
  bool is_pooled() const override { return true; }
  // Blocks that reserve can hand out: free ones and cached ones that may be evicted.
  std::int64_t num_free_blocks() const override;
  std::int64_t rows_held(std::int64_t total, std::int64_t step) const override;

  // Length of the longest cached prefix: a multiple of block_size, at most tokens.size() - 1, since
  // the last token's row must be computed to have its logits.
  std::int64_t match(std::span<const std::int64_t> tokens, std::int64_t adapter = 0) const override;
  // Starts a sequence on the first num_cached rows of the cached prefix of `tokens` (at most
  // match(tokens, adapter), a multiple of block_size); they count as committed.
  void begin(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t num_cached,
             std::int64_t adapter = 0) override;
  // Starts a sequence whose next row is that of token `end`, on what the cache holds of the tokens
  // before; the others are absent. What other sequences kept behind absent tokens is found where
  // these are the same (of which a hash decides: drafts may be wrong).
  void begin_behind(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t end,
                    std::int64_t adapter = 0) override;
  // Tokens of the request's text that have no row, all of them before the rows that it adds.
  std::int64_t absent(std::int64_t request) const override;
  // Rows of the request whose K/V is valid.
  std::int64_t committed(std::int64_t request) const override;
  // Rows in the blocks of the request that were offered for reuse (all committed ones, where there
  // is no reuse): commit need not be told the tokens before that.
  std::int64_t offered(std::int64_t request) const;
  // Of every request that has begun, its id and `committed`, by rising id.
  std::vector<std::pair<std::int64_t, std::int64_t>> committed_lengths() const override;
  // Blocks of the request in order of position, -1 for one that was let go; valid until the next
  // change of the request.
  std::span<const std::int32_t> block_table(std::int64_t request) const override;
  // Row of the cache that holds the K/V of a reserved position: block_size rows for each block
  // before its own, and its place in it.
  std::int64_t slot(std::int64_t request, std::int64_t position) const override;
  // Most tokens for which reserve would succeed now.
  std::int64_t room(std::int64_t request) const override;
  // Makes the table cover num_tokens rows in all. False, and nothing changed, if there are not
  // enough blocks. Never shrinks.
  bool reserve(std::int64_t request, std::int64_t num_tokens) override;
  // Rows 0 .. num_committed - 1 now hold the K/V of that many verified tokens. Offers newly full
  // blocks for reuse and returns blocks beyond the committed rows, and those behind the window of
  // the first row that was not offered.
  //
  // tokens: the verified tokens of the request from index `first` on, as far as they are known,
  // where first <= offered(request) + absent(request); with a lookahead, a block waits until the
  // tokens after it are known. num_committed: at least the committed length so far, at most what is
  // reserved, and at most first + tokens.size() - absent(request). keep_surplus: blocks beyond the
  // committed rows stay with the request, as steps in flight may write there.
  void commit(std::int64_t request, std::span<const std::int64_t> tokens, std::int64_t first,
              std::int64_t num_committed, bool keep_surplus = false) override;
  // Ends the sequence: blocks in the reuse table stay cached, others are free again.
  void free(std::int64_t request) override;

  // Throws std::logic_error unless the books balance; walks all blocks, for tests and debugging.
  void check_invariants() const override;

  bool keeps_states() const override;
  // Slot of the request's state, and of the snapshot that it begins on, until it commits a row; -1:
  // none. Nobody else gets it before.
  std::int32_t state(std::int64_t request) const override;
  std::int32_t source(std::int64_t request) const override;
  // The first row count above `rows` at which snapshots are kept.
  std::int64_t next_border(std::int64_t rows) const override;
  // A call takes the request's state from `from` rows, or more, to `to` at most. If it passes the next
  // border behind `from`, the state there is to be copied to the slot that is returned; it is the
  // request's until a commit passes the border as well. -1: no snapshot is to be made.
  Snapshot keep(std::int64_t request, std::int64_t from, std::int64_t to) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trtspec
