// A TokenTree as torch passes it from one native call to the next.
#pragma once
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/token_tree.hpp>

#include <utility>

struct TreeHolder : torch::CustomClassHolder {
  explicit TreeHolder(trtspec::TokenTree made) : tree(std::move(made)) {}
  trtspec::TokenTree tree;
};

using TreePointer = c10::intrusive_ptr<TreeHolder>;

// Of what takes trees; only once their class is registered.
void register_ngram(torch::Library& library);
void register_packing(torch::Library& library);
void register_row_sampler(torch::Library& library);
