#include "trtspec/draft_batch.hpp"

#include <numbers>
#include <stdexcept>
#include <string>

namespace trtspec {

TreeView DraftBatch::operator[](std::size_t request) const {
  const std::size_t first = starts_[request], count = starts_[request + 1] - first;
  return {std::span(tokens_).subspan(first, count), std::span(parents_).subspan(first, count),
          std::span(scores_).subspan(first, count)};
}

void DraftBatch::append(TreeView tree) {
  tokens_.insert(tokens_.end(), tree.tokens.begin(), tree.tokens.end());
  parents_.insert(parents_.end(), tree.parents.begin(), tree.parents.end());
  if (tree.scores.empty()) {
    for (const std::int32_t depth : tree.depths()) {
      scores_.push_back(-std::numbers::ln2_v<float> * static_cast<float>(depth));
    }
  } else {
    scores_.insert(scores_.end(), tree.scores.begin(), tree.scores.end());
  }
  starts_.push_back(tokens_.size());
}

DraftBatch DraftBatch::pick(std::span<const std::int64_t> places) const {
  DraftBatch picked;
  for (const std::int64_t place : places) {
    if (place < -1 || place >= static_cast<std::int64_t>(size())) {
      throw std::invalid_argument("drafts of " + std::to_string(size()) +
                                  " requests have no place " + std::to_string(place));
    }
    picked.append(place < 0 ? TreeView() : (*this)[static_cast<std::size_t>(place)]);
  }
  return picked;
}

}  // namespace trtspec
