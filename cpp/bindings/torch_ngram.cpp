// NgramIndex as torch sees it. Sizes that do not fit come to Python as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/ngram_index.hpp>

#include <algorithm>
#include <vector>

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

  trtspec::NgramIndex index;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<IndexHolder>("NgramIndex")
      .def(torch::init<int64_t, int64_t>())
      .def("size", &IndexHolder::size)
      .def("extend", &IndexHolder::extend)
      .def("propose", &IndexHolder::propose);
}
