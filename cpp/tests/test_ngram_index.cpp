#include <trtspec/ngram_index.hpp>

#include <algorithm>
#include <random>

#include "check.hpp"

namespace {

using trtspec::NgramIndex;
using Tokens = std::vector<std::int64_t>;

NgramIndex index_of(const Tokens& text, int min_ngram, int max_ngram) {
  NgramIndex index(min_ngram, max_ngram);
  index.extend(text);
  return index;
}

// By looking at every place of the text.
Tokens searched(const Tokens& text, int min_ngram, int max_ngram, std::int64_t count) {
  const auto size = std::int64_t(text.size());
  for (std::int64_t n = max_ngram; n >= min_ngram; --n) {
    for (std::int64_t end = size - 1; end >= n; --end) {
      if (!std::equal(text.begin() + (end - n), text.begin() + end, text.end() - n)) continue;
      Tokens found;
      for (std::int64_t i = 0; i < count; ++i) {
        found.push_back(text[std::size_t(end + i % (size - end))]);
      }
      return found;
    }
  }
  return {};
}

void the_latest_and_longest_is_found() {
  CHECK(index_of({1, 2, 3, 9, 2, 4, 1, 2}, 1, 1).propose(2) == (Tokens{4, 1}));
  CHECK(index_of({1, 2, 3, 9, 2, 4, 1, 2}, 1, 3).propose(2) == (Tokens{3, 9}));
  CHECK(index_of({1, 2, 3, 9, 2, 4, 1, 2}, 3, 3).propose(2).empty());
  CHECK(index_of({5, 6, 5, 6, 5}, 1, 2).propose(5) == (Tokens{6, 5, 6, 5, 6}));
  CHECK(index_of({5}, 1, 2).propose(5).empty());
  CHECK(NgramIndex(1, 3).propose(5).empty());
  CHECK(index_of({5, 5}, 1, 2).propose(0).empty());
  CHECK(index_of({-1, -2, -1}, 1, 1).propose(1) == (Tokens{-2}));
}

void sizes_are_checked() {
  CHECK_THROWS(NgramIndex(0, 2));
  CHECK_THROWS(NgramIndex(3, 2));
}

void random_texts() {
  std::mt19937 rng(3);
  for (int round = 0; round < 300; ++round) {
    const int min_ngram = 1 + int(rng() % 3);
    const int max_ngram = min_ngram + int(rng() % 4);
    const unsigned vocab = 2 + rng() % 4;
    NgramIndex index(min_ngram, max_ngram);
    Tokens text;
    while (text.size() < 120) {
      Tokens more(rng() % 8);
      // Tokens that differ in their high bits alone must not be joined.
      for (auto& token : more) token = std::int64_t(rng() % vocab) << (rng() % 2 ? 0 : 40);
      text.insert(text.end(), more.begin(), more.end());
      index.extend(more);
      CHECK_EQ(index.size(), std::int64_t(text.size()));
      const auto count = std::int64_t(rng() % 9);
      CHECK(index.propose(count) == searched(text, min_ngram, max_ngram, count));
    }
  }
}

}  // namespace

int main() {
  the_latest_and_longest_is_found();
  sizes_are_checked();
  random_texts();
  return check_result();
}
