// An AOTInductor package as torch sees it (used by trtspec/backends/aoti/session.py). Torch's own
// Python class holds the interpreter's lock while a package runs; methods of a custom class do not.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

struct PackageHolder : torch::CustomClassHolder {
  PackageHolder(const std::string& path, bool single_threaded)
      : loader(path, "model", single_threaded) {}

  std::vector<std::string> constants() { return loader.get_constant_fqns(); }

  // One tensor for each of constants(), which the caller keeps for as long as the package lives.
  void load(const Tensors& weights) {
    const std::vector<std::string> names = loader.get_constant_fqns();
    TORCH_CHECK_VALUE(weights.size() == names.size(), "the package has ", names.size(),
                      " constants, got ", weights.size());
    std::unordered_map<std::string, at::Tensor> named;
    for (std::size_t i = 0; i < names.size(); ++i) named.emplace(names[i], weights[i]);
    loader.load_constants(named, /*use_inactive=*/false, /*check_full_update=*/true,
                          /*user_managed=*/true);
  }

  Tensors run(Tensors inputs) { return loader.boxed_run(std::move(inputs)); }

  torch::inductor::AOTIModelPackageLoader loader;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<PackageHolder>("Package")
      .def(torch::init<std::string, bool>())
      .def("constants", &PackageHolder::constants)
      .def("load", &PackageHolder::load)
      .def("run", &PackageHolder::run);
}
