#include "trtspec/ngram_indexes.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace trtspec {

NgramIndexes::NgramIndexes(std::int32_t min_ngram, std::int32_t max_ngram)
    : min_ngram_(min_ngram), max_ngram_(max_ngram) {
  NgramIndex(min_ngram, max_ngram);  // refuses what does not fit
}

std::int64_t NgramIndexes::known(std::int64_t request) const {
  const auto found = indexes_.find(request);
  return found == indexes_.end() ? 0 : found->second.size();
}

void NgramIndexes::draft(std::int64_t request, std::span<const std::int64_t> tokens,
                         std::int64_t count, std::span<const std::int64_t> ends,
                         DraftBatch& drafts) {
  NgramIndex& index = indexes_.try_emplace(request, min_ngram_, max_ngram_).first->second;
  index.extend(tokens);
  std::vector<std::int64_t> chain = index.propose(count);
  chain.erase(std::ranges::find_first_of(chain, ends), chain.end());
  std::vector<std::int32_t> parents(chain.size());
  std::iota(parents.begin(), parents.end(), -1);
  drafts.append({chain, parents, {}});
}

}  // namespace trtspec
