// KVCache: which rows of a KV cache belong to whom. Bookkeeping only, no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace trtspec {

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

  virtual std::int64_t match(std::span<const std::int64_t> tokens) const = 0;
  virtual void begin(std::int64_t request, std::span<const std::int64_t> tokens,
                     std::int64_t num_cached) = 0;
  virtual void begin_behind(std::int64_t request, std::span<const std::int64_t> tokens,
                            std::int64_t end) = 0;
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
};

}  // namespace trtspec
