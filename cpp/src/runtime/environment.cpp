// What of this process an engine's compiled code depends on.
#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>

#include <string>
#include <trtspec/ops_version.hpp>
#include <trtspec/runtime/engine_folder.hpp>

namespace trtspec {

Environment Environment::here() {
  struct utsname system{};
  ::uname(&system);
  std::string torch = TORCH_VERSION;
  return {.torch = torch.substr(0, torch.find('+')),
          .machine = system.machine,
          .vector_isa = at::get_cpu_capability(),
          .ops = kOpsVersion,
          .compute_capability = std::nullopt,
          .tensorrt = std::nullopt,
          .instructions = std::nullopt};
}

}  // namespace trtspec
