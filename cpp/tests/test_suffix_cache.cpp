#include <trtspec/suffix_cache.hpp>

#include "check.hpp"

namespace {

using trtspec::SuffixCache;
using trtspec::SuffixOptions;
using trtspec::TokenId;
using Tokens = std::vector<TokenId>;

SuffixOptions some(std::int64_t max_tokens) {
  SuffixOptions options;
  options.max_tokens = max_tokens;
  return options;
}

void finish(SuffixCache& cache, std::int64_t request, const Tokens& response) {
  cache.start(request);
  cache.append_prompt(request, Tokens{99});
  cache.append_response(request, response);
  cache.stop(request);
}

void the_better_tree_wins() {
  SuffixCache cache(16, -1, 1000);
  finish(cache, 0, {1, 2, 3, 4, 5, 6});
  cache.start(1);
  cache.append_prompt(1, Tokens{1, 2, 7, 8, 9, 1, 2});
  // The response of request 0 goes on with certainty; the prompt once of two times.
  CHECK(cache.speculate(1, some(9)).tokens == (Tokens{3, 4}));
  cache.evict(0);
  CHECK(cache.speculate(1, some(9)).tokens == (Tokens{7, 8}));
  CHECK(cache.speculate(1, some(1)).tokens == (Tokens{7}));
  CHECK(cache.speculate(1, some(0)).tokens.empty());
}

void the_oldest_goes_first() {
  SuffixCache cache(8, 2, 1000);
  for (int i = 0; i < 4; ++i) finish(cache, i, {10 * i, 10 * i + 1});
  CHECK_EQ(cache.num_cached(), 2);
  CHECK_EQ(cache.global_tree().count(Tokens{10, 11}), 0);
  CHECK_EQ(cache.global_tree().count(Tokens{20, 21}), 1);
  SuffixCache few(8, -1, 10);
  for (int i = 0; i < 4; ++i) finish(few, i, Tokens(4, i));
  CHECK_EQ(few.num_cached_tokens(), 8);
  finish(few, 9, Tokens(30, 9));
  CHECK_EQ(few.num_cached(), 1);
  CHECK_EQ(few.num_cached_tokens(), 30);
  SuffixCache none(8, 0, 10);
  finish(none, 0, {1, 2});
  CHECK_EQ(none.num_cached(), 0);
}

void a_request_comes_back() {
  SuffixCache cache(8, 10, 1000);
  finish(cache, 5, {1, 2, 3});
  cache.start(5);
  cache.append_prompt(5, Tokens{99});
  cache.append_response(5, Tokens{1, 2});
  CHECK_EQ(cache.num_cached_tokens(), 3);
  cache.append_response(5, Tokens{3, 4});
  CHECK_EQ(cache.num_cached_tokens(), 4);
  CHECK_EQ(cache.global_tree().count(Tokens{1, 2, 3, 4}), 1);
  cache.global_tree().check();
}

void what_is_refused_and_ignored() {
  SuffixCache cache(8, 10, 1000);
  CHECK_THROWS(cache.append_prompt(0, Tokens{1}));
  CHECK_THROWS(cache.speculate(0, some(1)));
  cache.stop(0);
  CHECK(!cache.evict(0));
  cache.start(0);
  CHECK_THROWS(cache.start(0));
  CHECK_THROWS(cache.append_response(0, Tokens{-1}));
  cache.stop(0);
  CHECK_EQ(cache.num_cached(), 0);  // it said nothing
  CHECK_THROWS(SuffixCache(0, 1, 1));
  CHECK_THROWS(SuffixCache(8, -2, 1));
  CHECK_THROWS(SuffixCache(8, 1, -1));
}

}  // namespace

int main() {
  the_better_tree_wins();
  the_oldest_goes_first();
  a_request_comes_back();
  what_is_refused_and_ignored();
  return check_result();
}
