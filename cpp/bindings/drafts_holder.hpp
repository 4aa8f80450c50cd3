// A DraftBatch as torch passes it from one native call to the next.
#pragma once
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/draft_batch.hpp>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

struct DraftsHolder : torch::CustomClassHolder {
  explicit DraftsHolder(trtspec::DraftBatch made) : drafts(std::move(made)) {}
  trtspec::DraftBatch drafts;
};

// What Python is given: the batch's owner, its address, and of each request the nodes and the
// largest depth, which every step asks for, since a call from Python costs more than either.
using DescribedDrafts = std::tuple<c10::intrusive_ptr<DraftsHolder>, int64_t, std::vector<int64_t>,
                                   std::vector<int64_t>>;

inline DescribedDrafts described(trtspec::DraftBatch drafts) {
  auto owner = c10::make_intrusive<DraftsHolder>(std::move(drafts));
  const trtspec::DraftBatch& held = owner->drafts;
  std::vector<int64_t> counts, depths;
  for (std::size_t i = 0; i < held.size(); ++i) {
    counts.push_back(held[i].size());
    depths.push_back(held[i].max_depth());
  }
  const auto address = reinterpret_cast<int64_t>(&held);
  return {std::move(owner), address, std::move(counts), std::move(depths)};
}

// What Python gives to other calls: the address of a batch that it owns meanwhile. Of an owner given
// as an argument, or asked for a method, torch looks up attributes that it lacks, and two exceptions
// each time take longer than most calls.
inline const trtspec::DraftBatch& drafts_at(int64_t address) {
  return *reinterpret_cast<const trtspec::DraftBatch*>(address);
}

// Of what takes or gives drafts; only once their class is registered.
void register_ngram(torch::Library& library);
void register_packing(torch::Library& library);
void register_row_sampler(torch::Library& library);
void register_suffix(torch::Library& library);
