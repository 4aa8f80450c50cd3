// NgramIndexes as torch sees them. Sizes that do not fit come to Python as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/ngram_indexes.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "drafts_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

int32_t narrowed(int64_t value) {
  return int32_t(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

struct IndexesHolder : torch::CustomClassHolder {
  IndexesHolder(int64_t min_ngram, int64_t max_ngram)
      : indexes(narrowed(min_ngram), narrowed(max_ngram)) {}

  // Of each item of a step its request, the new tokens of its text and how many nodes it may have;
  // with 0 it is not looked at.
  DescribedDrafts draft(const Ints& requests, const std::vector<Ints>& tokens, const Ints& counts,
                        const std::vector<Ints>& ends) {
    const size_t size = requests.size();
    TORCH_CHECK(tokens.size() == size && counts.size() == size && ends.size() == size,
                "n-gram: one of each is needed for ", size, " requests");
    trtspec::DraftBatch drafts;
    for (size_t i = 0; i < size; ++i) {
      if (counts[i] > 0) {
        indexes.draft(requests[i], tokens[i], counts[i], ends[i], drafts);
      } else {
        drafts.append();
      }
    }
    return described(std::move(drafts));
  }
  void release(int64_t request) { indexes.release(request); }

  trtspec::NgramIndexes indexes;
};

}  // namespace

void register_ngram(torch::Library& library) {
  library.class_<IndexesHolder>("NgramIndexes")
      .def(torch::init<int64_t, int64_t>())
      .def("draft", &IndexesHolder::draft)
      .def("release", &IndexesHolder::release);
}
