// A TokenTree as torch passes it from one native call to the next.
#pragma once
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/token_tree.hpp>

#include <cstdint>
#include <tuple>
#include <utility>

struct TreeHolder : torch::CustomClassHolder {
  explicit TreeHolder(trtspec::TokenTree made) : tree(std::move(made)) {}
  trtspec::TokenTree tree;
};

// What Python is given: the tree's owner, its address, its nodes and its largest depth, which every
// step asks for, since a call from Python costs more than either.
using Described = std::tuple<c10::intrusive_ptr<TreeHolder>, int64_t, int64_t, int64_t>;

inline Described described(trtspec::TokenTree tree) {
  const int64_t size = tree.size(), max_depth = tree.view().max_depth();
  auto owner = c10::make_intrusive<TreeHolder>(std::move(tree));
  const auto address = reinterpret_cast<int64_t>(&owner->tree);
  return {std::move(owner), address, size, max_depth};
}

// What Python gives to other calls: the address of a tree that it owns meanwhile. Of an owner given
// as an argument, or asked for a method, torch looks up attributes that it lacks, and two exceptions
// each time take longer than most calls.
inline const trtspec::TokenTree& tree_at(int64_t address) {
  return *reinterpret_cast<const trtspec::TokenTree*>(address);
}

// Of what takes trees; only once their class is registered.
void register_drafts(torch::Library& library);
void register_ngram(torch::Library& library);
void register_packing(torch::Library& library);
void register_row_sampler(torch::Library& library);
void register_suffix(torch::Library& library);
