#include "trtspec/ngram_index.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace trtspec {

namespace {
constexpr std::size_t kFirstTable = 64;  // entries; a power of two, as every later size
}  // namespace

NgramIndex::NgramIndex(std::int32_t min_ngram, std::int32_t max_ngram)
    : min_ngram_(min_ngram), max_ngram_(max_ngram) {
  if (min_ngram < 1 || max_ngram < min_ngram) {
    throw std::invalid_argument("n-gram index: needs 1 <= min_ngram <= max_ngram, got " +
                                std::to_string(min_ngram) + " and " + std::to_string(max_ngram));
  }
}

std::size_t NgramIndex::place(std::uint32_t shorter, std::int64_t token) const {
  std::uint64_t bits = std::uint64_t(token) + 0x9e3779b97f4a7c15u * (std::uint64_t(shorter) + 1);
  bits = (bits ^ (bits >> 32)) * 0xd6e8feb86659fd93u;
  const std::size_t last = table_.size() - 1;
  std::size_t at = std::size_t(bits ^ (bits >> 32)) & last;
  while (table_[at].next >= 0 && (table_[at].token != token || table_[at].shorter != shorter)) {
    at = (at + 1) & last;
  }
  return at;
}

void NgramIndex::make_room(std::int64_t entries) {
  if (num_entries_ + entries > std::int64_t(std::numeric_limits<std::uint32_t>::max())) {
    throw std::length_error("n-gram index: more than 2^32 n-grams");
  }
  // At most two thirds full: probes stay short, and there is always an empty entry to end them.
  if ((num_entries_ + entries) * 3 <= std::int64_t(table_.size()) * 2) return;
  std::size_t size = std::max(table_.size() * 2, kFirstTable);
  while (std::int64_t(size) * 2 < (num_entries_ + entries) * 3) size *= 2;
  const std::vector<Entry> old = std::exchange(table_, std::vector<Entry>(size));
  for (const Entry& entry : old) {
    if (entry.next >= 0) table_[place(entry.shorter, entry.token)] = entry;
  }
}

void NgramIndex::extend(std::span<const std::int64_t> tokens) {
  for (const std::int64_t token : tokens) {
    const std::int64_t end = size();
    const std::int64_t longest = std::min<std::int64_t>(max_ngram_, end);
    make_room(longest);
    std::uint32_t ngram = kNoNgram;
    for (std::int64_t n = 1; n <= longest; ++n) {
      const std::int64_t first = text_[std::size_t(end - n)];
      Entry& entry = table_[place(ngram, first)];
      if (entry.next < 0) entry = {first, end, ngram, std::uint32_t(++num_entries_)};
      entry.next = end;
      ngram = entry.ngram;
    }
    text_.push_back(token);
  }
}

std::vector<std::int64_t> NgramIndex::propose(std::int64_t count) const {
  if (count <= 0 || table_.empty()) return {};
  std::int64_t begin = -1;
  std::uint32_t ngram = kNoNgram;
  // Whatever followed an n-gram followed its last n - 1 tokens too: the first miss ends the search.
  for (std::int64_t n = 1; n <= std::min<std::int64_t>(max_ngram_, size()); ++n) {
    const Entry& entry = table_[place(ngram, text_[std::size_t(size() - n)])];
    if (entry.next < 0) break;
    if (n >= min_ngram_) begin = entry.next;
    ngram = entry.ngram;
  }
  if (begin < 0) return {};
  std::vector<std::int64_t> found(static_cast<std::size_t>(count));
  const std::int64_t period = std::min(count, size() - begin);
  for (std::int64_t i = 0; i < count; ++i) {
    found[std::size_t(i)] =
        i < period ? text_[std::size_t(begin + i)] : found[std::size_t(i - period)];
  }
  return found;
}

}  // namespace trtspec
