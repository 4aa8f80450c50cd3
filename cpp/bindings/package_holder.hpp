// An AOTInductor package as torch passes it from one native call to the next.
#pragma once
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/session.hpp>

#include <string>
#include <utility>
#include <vector>

struct PackageHolder : torch::CustomClassHolder, trtspec::Session {
  using Tensors = std::vector<at::Tensor>;

  PackageHolder(const std::string& path, bool single_threaded)
      : loader(path, "model", single_threaded) {}

  std::vector<std::string> constants() { return loader.get_constant_fqns(); }
  // One tensor for each of constants(), which the caller keeps for as long as the package lives.
  void load(const Tensors& weights);
  Tensors run(Tensors inputs) override { return loader.boxed_run(std::move(inputs)); }

  torch::inductor::AOTIModelPackageLoader loader;
};

// Of what runs packages; only once their class is registered.
void register_pass_rollout(torch::Library& library);
