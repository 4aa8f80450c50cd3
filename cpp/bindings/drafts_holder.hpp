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

// What Python is given: the batch's owner, its address, of each request the nodes and the largest
// depth, and whether the first source proposed all nodes, which every step asks for, since a call
// from Python costs more than any of it.
using DescribedDrafts = std::tuple<c10::intrusive_ptr<DraftsHolder>, int64_t, std::vector<int64_t>,
                                   std::vector<int64_t>, bool>;

inline DescribedDrafts described(trtspec::DraftBatch drafts) {
  auto owner = c10::make_intrusive<DraftsHolder>(std::move(drafts));
  const trtspec::DraftBatch& held = owner->drafts;
  std::vector<int64_t> counts, depths;
  bool has_one_source = true;
  for (std::size_t i = 0; i < held.size(); ++i) {
    counts.push_back(held[i].size());
    depths.push_back(held[i].max_depth());
    for (const uint8_t source : held[i].sources) has_one_source = has_one_source && source == 0;
  }
  const auto address = reinterpret_cast<int64_t>(&held);
  return {std::move(owner), address, std::move(counts), std::move(depths), has_one_source};
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
