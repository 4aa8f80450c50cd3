// An AOTInductor package as torch sees it (used by trtspec/backends/aoti/session.py). Torch's own
// Python class holds the interpreter's lock while a package runs; methods of a custom class do not.
#include <unordered_map>

#include "package_holder.hpp"

void PackageHolder::load(const Tensors& weights) {
  const std::vector<std::string> names = loader.get_constant_fqns();
  TORCH_CHECK_VALUE(weights.size() == names.size(), "the package has ", names.size(),
                    " constants, got ", weights.size());
  std::unordered_map<std::string, at::Tensor> named;
  for (std::size_t i = 0; i < names.size(); ++i) named.emplace(names[i], weights[i]);
  loader.load_constants(named, /*use_inactive=*/false, /*check_full_update=*/true,
                        /*user_managed=*/true);
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<PackageHolder>("Package")
      .def(torch::init<std::string, bool>())
      .def("constants", &PackageHolder::constants)
      .def("load", &PackageHolder::load)
      .def("run", &PackageHolder::run);
  register_pass_rollout(m);
}
