// Slots of a slot cache: who has which, how long, and what is refused.
#include <trtspec/slot_kv_cache_manager.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::SlotKVCacheManager;
using Tokens = std::vector<std::int64_t>;

constexpr std::int64_t kLength = 10;

std::int32_t slot_of(const SlotKVCacheManager& cache, std::int64_t request) {
  const auto table = cache.block_table(request);
  return table.empty() ? -1 : table[0];
}

void test_slots() {
  SlotKVCacheManager cache(3, kLength);
  const Tokens tokens(kLength, 7);
  for (std::int64_t request : {5, 6, 7, 8}) cache.begin(request, tokens, 0);
  CHECK_EQ(cache.match(tokens), 0);
  CHECK_EQ(slot_of(cache, 5), -1);
  CHECK(cache.reserve(5, 0));
  CHECK_EQ(slot_of(cache, 5), -1);  // no row, no slot
  CHECK(cache.reserve(6, 1) && cache.reserve(5, 4) && cache.reserve(7, kLength));
  CHECK_EQ(slot_of(cache, 6), 0);
  CHECK_EQ(slot_of(cache, 5), 1);
  CHECK_EQ(slot_of(cache, 7), 2);
  CHECK_EQ(cache.num_free_blocks(), 0);
  CHECK_EQ(cache.room(8), 0);
  CHECK(!cache.reserve(8, 1));
  CHECK_EQ(cache.room(5), kLength);
  CHECK(!cache.reserve(5, kLength + 1));
  cache.free(5);
  CHECK(cache.reserve(8, 2));
  CHECK_EQ(slot_of(cache, 8), 1);  // the lowest free one
  cache.check_invariants();
  CHECK_EQ(cache.capacity(), kLength);
  CHECK(!cache.is_pooled());
}

void test_lengths() {
  SlotKVCacheManager cache(1, kLength);
  const Tokens tokens(8, 7);
  cache.begin(1, tokens, 0);
  CHECK(cache.reserve(1, 6));
  cache.commit(1, tokens, 0, 4);
  CHECK_EQ(cache.committed(1), 4);
  CHECK_THROWS(cache.commit(1, tokens, 0, 5));  // what was beyond is not reserved any more
  CHECK_THROWS(cache.commit(1, tokens, 0, 3));
  CHECK(cache.reserve(1, 9));
  CHECK_THROWS(cache.commit(1, tokens, 0, 9));  // more than there are tokens
  cache.commit(1, std::span(tokens).subspan(4), 4, 7, true);
  cache.commit(1, tokens, 0, 8);  // the ninth row was kept
  cache.check_invariants();
}

void test_refusals() {
  CHECK_THROWS(SlotKVCacheManager(0, 4));
  CHECK_THROWS(SlotKVCacheManager(4, 0));
  SlotKVCacheManager cache(2, kLength);
  CHECK_THROWS(cache.committed(1));
  CHECK_THROWS(cache.begin(1, Tokens{1, 2}, 1));
  cache.begin(2, Tokens{1, 2}, 0);
  CHECK_THROWS(cache.begin(2, Tokens{1, 2}, 0));
  cache.free(2);
  CHECK_THROWS(cache.free(2));
}

// Any calls in any order: no slot is lost or given twice, and a sequence keeps its own.
void test_random_calls(unsigned seed) {
  std::mt19937 random(seed);
  SlotKVCacheManager cache(3, kLength);
  const Tokens tokens(kLength, 1);
  std::map<std::int64_t, std::int32_t> slots;
  std::int64_t next = 0;
  for (int call = 0; call < 300; ++call) {
    if (slots.size() < 5 && random() % 3 == 0) {
      cache.begin(next, tokens, 0);
      slots[next++] = -1;
    }
    if (slots.empty()) continue;
    auto entry = std::next(slots.begin(), long(random() % slots.size()));
    const std::int64_t request = entry->first;
    const std::int64_t held = cache.committed(request);
    switch (random() % 3) {
      case 0:
        cache.free(request);
        slots.erase(entry);
        break;
      default: {
        const std::int64_t more = 1 + std::int64_t(random() % 4);
        const std::int64_t wanted = std::min(held + more, kLength);
        const bool possible = entry->second >= 0 || cache.num_free_blocks() > 0;
        CHECK_EQ(cache.reserve(request, wanted), possible);
        if (!possible) break;
        if (entry->second >= 0) CHECK_EQ(slot_of(cache, request), entry->second);
        entry->second = slot_of(cache, request);
        cache.commit(request, tokens, 0, std::min(held + std::int64_t(random() % 5), wanted));
      }
    }
    cache.check_invariants();
  }
}

}  // namespace

int main() {
  test_slots();
  test_lengths();
  test_refusals();
  for (unsigned seed = 0; seed < 5; ++seed) test_random_calls(seed);
  return check_result();
}
