// KVCache: which rows of a KV cache belong to whom. Bookkeeping only, no tensors.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace trtspec {

// How many states a cache holds beside its rows: of requests, in the first slots; behind these as many
// snapshots of prefixes as find room, at borders that are so many blocks apart. No network without
// states has any.
struct StateSizes {
  std::int64_t num_states = 0;
  std::int64_t num_snapshots = 0;
  std::int64_t blocks_apart = 0;
};

// A state of a request that has taken in so many rows, and the slot where it is kept; -1: it is not.
struct Snapshot {
  std::int64_t rows = 0;
  std::int32_t slot = -1;
};

// What the caches have in common: the paged one of KVCacheManager, whose contract this is, and the
// slot one of SlotKVCacheManager.
class KVCache {
 public:
  virtual ~KVCache() = default;

  virtual std::int64_t num_blocks() const = 0;
  // Token rows of a block.
  virtual std::int64_t block_size() const = 0;
  // Most rows that one sequence can have.
  virtual std::int64_t capacity() const = 0;
  virtual std::int64_t num_free_blocks() const = 0;
  // Most rows that a sequence of `total` holds at once, where a step adds at most `step`.
  virtual std::int64_t rows_held(std::int64_t total, std::int64_t step) const {
    static_cast<void>(step);
    return total;
  }
  // Newest tokens that a row sees, its own included; 0: all.
  virtual std::int64_t window() const { return 0; }
  // Whether sequences may begin on what others left.
  virtual bool enable_reuse() const { return false; }
  // Whether sequences take further blocks from a common pool while they grow.
  virtual bool is_pooled() const = 0;

  virtual std::int64_t match(std::span<const std::int64_t> tokens,
                             std::int64_t adapter = 0) const = 0;
  virtual void begin(std::int64_t request, std::span<const std::int64_t> tokens,
                     std::int64_t num_cached, std::int64_t adapter = 0) = 0;
  virtual void begin_behind(std::int64_t request, std::span<const std::int64_t> tokens,
                            std::int64_t end, std::int64_t adapter = 0) = 0;
  virtual std::int64_t absent(std::int64_t request) const = 0;
  virtual std::int64_t committed(std::int64_t request) const = 0;
  virtual std::vector<std::pair<std::int64_t, std::int64_t>> committed_lengths() const = 0;
  virtual std::span<const std::int32_t> block_table(std::int64_t request) const = 0;
  virtual std::int64_t slot(std::int64_t request, std::int64_t position) const = 0;
  virtual std::int64_t room(std::int64_t request) const = 0;
  virtual bool reserve(std::int64_t request, std::int64_t num_tokens) = 0;
  virtual void commit(std::int64_t request, std::span<const std::int64_t> tokens,
                      std::int64_t first, std::int64_t num_committed, bool keep_surplus) = 0;
  virtual void free(std::int64_t request) = 0;
  virtual void check_invariants() const = 0;

  // Of a network that keeps states: see KVCacheManager. Others have none of all this.
  virtual bool keeps_states() const { return false; }
  virtual std::int32_t state(std::int64_t request) const {
    static_cast<void>(request);
    return -1;
  }
  virtual std::int32_t source(std::int64_t request) const {
    static_cast<void>(request);
    return -1;
  }
  virtual std::int64_t next_border(std::int64_t rows) const {
    static_cast<void>(rows);
    return std::numeric_limits<std::int64_t>::max();
  }
  virtual Snapshot keep(std::int64_t request, std::int64_t from, std::int64_t to) {
    static_cast<void>(request), static_cast<void>(from), static_cast<void>(to);
    return {};
  }
};

}  // namespace trtspec
