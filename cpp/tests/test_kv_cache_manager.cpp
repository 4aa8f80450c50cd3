#include <trtspec/kv_cache_manager.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "check.hpp"

namespace {

using trtspec::KVCacheManager;
using Tokens = std::vector<std::int64_t>;
using Blocks = std::vector<std::int32_t>;

Tokens counting(std::int64_t size, std::int64_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(size));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Blocks table(const KVCacheManager& cache, std::int64_t request) {
  const auto blocks = cache.block_table(request);
  return {blocks.begin(), blocks.end()};
}

// Begins on whatever is cached, reserves and commits; the cached length.
std::int64_t run(KVCacheManager& cache, std::int64_t request, const Tokens& tokens,
                 std::int64_t committed) {
  const std::int64_t cached = cache.match(tokens);
  cache.begin(request, tokens, cached);
  CHECK(cache.reserve(request, committed));
  cache.commit(request, tokens, 0, committed);
  cache.check_invariants();
  return cached;
}

void blocks_behind_the_window_are_let_go() {
  KVCacheManager cache(8, 4, true, 0, 7);
  const Tokens text = counting(30);
  run(cache, 1, text, 20);  // the row at 20 sees 14 to 20
  CHECK((table(cache, 1) == Blocks{-1, -1, -1, 3, 4}));
  CHECK_EQ(cache.num_free_blocks(), 6);
  CHECK_THROWS(cache.slot(1, 11));
  CHECK_EQ(cache.slot(1, 12), 12);
  Tokens other = counting(18);
  other[17] = 99;
  CHECK_EQ(run(cache, 2, other, 16), 16);
  CHECK((table(cache, 2) == Blocks{-1, -1, 2, 3}));
  cache.free(1);
  cache.free(2);
  CHECK_EQ(cache.num_free_blocks(), 8);
  CHECK_EQ(cache.match(text), 20);
  CHECK_EQ(cache.rows_held(400, 4), 7 + 3 * 4 + 4);
  CHECK_EQ(KVCacheManager(8, 4).rows_held(400, 4), 400);
  CHECK_THROWS(KVCacheManager(8, 4, true, 0, -1));
}

void reserve_is_all_or_nothing() {
  KVCacheManager cache(3, 4);
  CHECK_EQ(cache.capacity(), 12);
  cache.begin(1, Tokens{5, 6}, 0);
  CHECK(cache.reserve(1, 5));
  CHECK(table(cache, 1) == (Blocks{0, 1}));  // the lowest first
  CHECK_EQ(cache.slot(1, 5), 5);
  CHECK_THROWS(cache.slot(1, 8));
  CHECK(cache.reserve(1, 8) && cache.reserve(1, 1));
  CHECK_EQ(table(cache, 1).size(), 2u);
  CHECK_EQ(cache.room(1), 12);
  CHECK(!cache.reserve(1, 13));
  CHECK(!cache.reserve(1, INT64_MAX));
  CHECK_EQ(cache.num_free_blocks(), 1);
  cache.commit(1, Tokens{5, 6, 7}, 0, 3, true);  // the surplus is kept
  CHECK(table(cache, 1) == (Blocks{0, 1}));
  cache.commit(1, Tokens{5, 6, 7, 8, 9}, 0, 4);  // the surplus goes back
  CHECK(table(cache, 1) == (Blocks{0}));
  CHECK_EQ(cache.num_free_blocks(), 2);
}

void conditions_are_checked() {
  CHECK_THROWS(KVCacheManager(0, 4));
  CHECK_THROWS(KVCacheManager(4, 0));
  CHECK_THROWS(KVCacheManager(4, 4, true, -1));
  CHECK_THROWS(KVCacheManager(std::int64_t(1) << 31, 4));
  KVCacheManager cache(8, 4);
  CHECK_THROWS(cache.committed(1));
  CHECK_THROWS(cache.free(1));
  cache.begin(1, Tokens{1}, 0);
  CHECK_THROWS(cache.begin(1, Tokens{1}, 0));
  CHECK_THROWS(cache.begin(2, Tokens{1}, 4));
  CHECK(cache.reserve(1, 4));
  CHECK_THROWS(cache.commit(1, counting(9), 0, 5));  // beyond the reserved rows
  CHECK_THROWS(cache.commit(1, counting(2), 0, 3));  // not verified
  CHECK_THROWS(cache.commit(1, counting(2), 1, 2));  // nobody knows token 0
  cache.commit(1, counting(2), 0, 2);
  CHECK_THROWS(cache.commit(1, counting(2), 0, 1));  // backwards
  CHECK_EQ(cache.committed(1), 2);
  cache.check_invariants();
}

void a_prefix_is_shared() {
  KVCacheManager cache(8, 4);
  const Tokens tokens = counting(10);
  run(cache, 1, tokens, 8);
  CHECK_EQ(cache.match(tokens), 8);
  CHECK_EQ(cache.match(counting(8)), 4);  // the last token is computed
  CHECK_EQ(cache.match(counting(10, 1)), 0);
  cache.begin(2, tokens, 8);
  CHECK(table(cache, 2) == table(cache, 1));
  CHECK((cache.committed_lengths() ==
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 8}, {2, 8}}));
  cache.free(1);
  cache.free(2);
  CHECK_EQ(cache.match(tokens), 8);
  CHECK_EQ(cache.num_free_blocks(), 8);
  // Only the tokens after the offered ones are needed.
  cache.begin(3, tokens, 8);
  CHECK_EQ(cache.offered(3), 8);
  CHECK(cache.reserve(3, 12));
  cache.commit(3, counting(5, 8), 8, 12);
  CHECK_EQ(cache.match(counting(13)), 12);
}

void a_prefix_is_of_one_adapter() {
  KVCacheManager cache(16, 4);
  const Tokens tokens(9, 0);
  for (const std::int64_t adapter : {0, 1, 2}) {
    CHECK_EQ(cache.match(tokens, adapter), 0);
    cache.begin(adapter, tokens, 0, adapter);
    CHECK(cache.reserve(adapter, 8));
    cache.commit(adapter, tokens, 0, 8);
    CHECK_EQ(cache.match(tokens, adapter), 8);
  }
  cache.begin(3, tokens, 8, 1);
  CHECK(table(cache, 3) == table(cache, 1));
  cache.check_invariants();
}

void the_oldest_and_deepest_is_evicted() {
  KVCacheManager cache(4, 4);
  const Tokens old(9, 1), fresh(9, 2);
  run(cache, 1, old, 8);
  run(cache, 2, fresh, 8);
  cache.free(1);
  cache.free(2);
  cache.begin(3, Tokens{3}, 0);
  CHECK(cache.reserve(3, 4));
  CHECK(table(cache, 3) == (Blocks{1}));
  CHECK_EQ(cache.match(old), 4);
  CHECK(cache.reserve(3, 12));
  CHECK_EQ(cache.match(old), 0);
  CHECK_EQ(cache.match(fresh), 4);
  cache.check_invariants();
}

void lookahead_and_no_reuse() {
  KVCacheManager ahead(8, 4, true, 1);
  run(ahead, 1, counting(4), 4);
  CHECK_EQ(ahead.match(counting(6)), 0);
  ahead.commit(1, counting(5), 0, 4);
  CHECK_EQ(ahead.match(counting(6)), 4);
  CHECK_EQ(ahead.match(Tokens{0, 1, 2, 3, 9, 6}), 0);
  KVCacheManager none(8, 4, false);
  CHECK_EQ(run(none, 1, counting(9), 8), 0);
  CHECK_EQ(none.offered(1), 8);
  CHECK(none.reserve(1, 12));
  none.commit(1, counting(3, 8), 8, 11);
  none.free(1);
  CHECK_EQ(none.match(counting(9)), 0);
  none.check_invariants();
}

// Requests with random texts write rows, commit some and end. A row's content is all that
// it depends on: the tokens up to its own, and `lookahead` more.
class Simulation {
 public:
  explicit Simulation(unsigned seed)
      : rng_(seed),
        ahead_(std::int64_t(rng_() % 3 == 0)),
        block_(1 + std::int64_t(rng_() % 4)),
        cache_(4 + std::int64_t(rng_() % 12), block_, rng_() % 5 != 0, ahead_),
        rows_(std::size_t(cache_.capacity())) {}

  void step() {
    const auto request = std::int64_t(rng_() % 5);
    if (!texts_.contains(request)) {
      begin(request);
    } else if (rng_() % 8 == 0) {
      cache_.free(request);
      texts_.erase(request);
    } else {
      grow(request);
    }
    cache_.check_invariants();
    for (const auto& [id, committed] : cache_.committed_lengths()) {
      for (std::int64_t p = 0; p < committed; ++p) {
        CHECK(rows_[std::size_t(cache_.slot(id, p))] == content(texts_[id], p));
      }
    }
  }

  std::int64_t reused() const { return reused_; }
  std::int64_t refused() const { return refused_; }

 private:
  Tokens content(const Tokens& text, std::int64_t position) const {
    return {text.begin(), text.begin() + position + 1 + ahead_};
  }

  void begin(std::int64_t request) {
    Tokens text(1 + rng_() % 20);
    for (auto& token : text) token = std::int64_t(rng_() % 8 == 0);
    const std::int64_t cached = cache_.match(text);
    CHECK(cached % block_ == 0 && cached < std::int64_t(text.size()));
    reused_ += cached > 0;
    cache_.begin(request, text, cached);
    texts_[request] = text;
  }

  void grow(std::int64_t request) {
    Tokens& text = texts_[request];
    const std::int64_t committed = cache_.committed(request);
    const std::int64_t reserved = committed + 1 + std::int64_t(rng_() % 10);
    const bool fits = reserved <= (cache_.room(request));
    CHECK_EQ(cache_.reserve(request, reserved), fits);
    if (!fits) {
      ++refused_;
      return;
    }
    const std::int64_t next = committed + std::int64_t(rng_() % 8);
    while (std::int64_t(text.size()) < next) text.push_back(std::int64_t(rng_() % 8 == 0));
    // Rows beyond the committed ones hold drafts, and nobody may find them.
    for (std::int64_t p = committed; p < reserved; ++p) {
      rows_[std::size_t(cache_.slot(request, p))] = Tokens{-1};
    }
    const std::int64_t done =
        std::clamp(std::min(next, std::int64_t(text.size()) - ahead_), committed, reserved);
    for (std::int64_t p = committed; p < done; ++p) {
      rows_[std::size_t(cache_.slot(request, p))] = content(text, p);
    }
    const std::int64_t first =
        cache_.offered(request) - std::min<std::int64_t>(cache_.offered(request), rng_() % 3);
    cache_.commit(request, std::span(text).subspan(std::size_t(first)), first, done);
    CHECK_EQ(std::int64_t(cache_.block_table(request).size()), (done + block_ - 1) / block_);
  }

  std::mt19937 rng_;
  std::int64_t ahead_;
  std::int64_t block_;
  KVCacheManager cache_;
  std::vector<Tokens> rows_;
  std::map<std::int64_t, Tokens> texts_;
  std::int64_t reused_ = 0;
  std::int64_t refused_ = 0;
};

void random_schedules() {
  std::int64_t reused = 0;
  std::int64_t refused = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    Simulation simulation(seed);
    for (int i = 0; i < 150; ++i) simulation.step();
    reused += simulation.reused();
    refused += simulation.refused();
  }
  CHECK(reused > 500);
  CHECK(refused > 500);
}

}  // namespace

int main() {
  reserve_is_all_or_nothing();
  blocks_behind_the_window_are_let_go();
  conditions_are_checked();
  a_prefix_is_shared();
  a_prefix_is_of_one_adapter();
  the_oldest_and_deepest_is_evicted();
  lookahead_and_no_reuse();
  random_schedules();
  return check_result();
}
