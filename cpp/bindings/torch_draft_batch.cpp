// DraftBatch as torch sees it. Places that are not there come to Python as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <stdexcept>
#include <vector>

#include "drafts_holder.hpp"
#include "tree_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

// Of the trees at these addresses.
DescribedDrafts of(const Ints& trees) {
  trtspec::DraftBatch drafts;
  for (const int64_t tree : trees) drafts.append(tree_at(tree));
  return described(std::move(drafts));
}

DescribedDrafts pick(int64_t address, const Ints& places) {
  try {
    return described(drafts_at(address).pick(places));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

Described tree(int64_t address, int64_t request) {
  const trtspec::TreeView own = drafts_at(address)[std::size_t(request)];
  return described(trtspec::TokenTree({own.tokens.begin(), own.tokens.end()},
                                      {own.parents.begin(), own.parents.end()},
                                      {own.scores.begin(), own.scores.end()}));
}

}  // namespace

void register_drafts(torch::Library& library) {
  library.class_<DraftsHolder>("DraftBatch")
      .def_static("of", &of)
      .def_static("pick", &pick)
      .def_static("tree", &tree);
}
