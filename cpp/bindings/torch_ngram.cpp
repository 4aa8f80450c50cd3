// NGramDrafter as torch sees it. Sizes that do not fit come to Python as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/ngram_drafter.hpp>

#include <algorithm>
#include <vector>

#include "cache_holder.hpp"
#include "drafts_holder.hpp"
#include "sequence_holder.hpp"

namespace {

int32_t narrowed(int64_t value) {
  return int32_t(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

struct NGramHolder : torch::CustomClassHolder {
  NGramHolder(int64_t max_draft_len, int64_t min_ngram, int64_t max_ngram)
      : drafter(as_value_error([&] {
          return trtspec::NGramDrafter({max_draft_len, narrowed(min_ngram), narrowed(max_ngram)});
        })) {}

  DescribedDrafts prepare(const at::Tensor& plan) {
    return described(drafter.prepare_draft_tokens(plan_of(plan)));
  }
  void release(int64_t request) { drafter.release(request); }
  std::vector<int64_t> live_requests() { return drafter.live_requests(); }

  trtspec::NGramDrafter drafter;
};

}  // namespace

void register_ngram(torch::Library& library) {
  library.class_<NGramHolder>("NGramDrafter")
      .def(torch::init<int64_t, int64_t, int64_t>())
      .def("prepare", &NGramHolder::prepare)
      .def("release", &NGramHolder::release)
      .def("live_requests", &NGramHolder::live_requests);
}
