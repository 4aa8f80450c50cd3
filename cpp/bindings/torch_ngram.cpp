// NgramIndex as torch sees it. Sizes that do not fit come to Python as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/ngram_index.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "tree_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

int32_t narrowed(int64_t value) {
  return int32_t(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

struct IndexHolder : torch::CustomClassHolder {
  IndexHolder(int64_t min_ngram, int64_t max_ngram)
      : index(narrowed(min_ngram), narrowed(max_ngram)) {}

  int64_t size() { return index.size(); }
  void extend(const Ints& tokens) { index.extend(tokens); }
  Ints propose(int64_t count) { return index.propose(count); }
  // Takes in `tokens`, and then proposes a chain of at most `count` nodes, of which none carries one
  // of `unwanted`.
  Described draft(const Ints& tokens, int64_t count, const Ints& unwanted) {
    index.extend(tokens);
    Ints proposed = index.propose(count);
    proposed.erase(std::find_first_of(proposed.begin(), proposed.end(), unwanted.begin(),
                                      unwanted.end()),
                   proposed.end());
    return described(trtspec::TokenTree::chain(std::move(proposed)));
  }

  trtspec::NgramIndex index;
};

}  // namespace

void register_ngram(torch::Library& library) {
  library.class_<IndexHolder>("NgramIndex")
      .def(torch::init<int64_t, int64_t>())
      .def("size", &IndexHolder::size)
      .def("extend", &IndexHolder::extend)
      .def("propose", &IndexHolder::propose)
      .def("draft", &IndexHolder::draft);
}
