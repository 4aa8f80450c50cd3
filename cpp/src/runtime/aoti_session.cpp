#include "trtspec/runtime/aoti_session.hpp"

#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <filesystem>
#include <string_view>
#include <trtspec/error.hpp>
#include <unordered_map>
#include <utility>

namespace trtspec {

namespace {

// What went wrong, on one line and without torch's stack traces.
std::string reason_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string what = known ? known->what_without_backtrace() : error.what();
  return what.substr(0, what.find('\n'));
}

// The tensor that a constant of a package stands for; undefined if there is none. A rollout wraps
// its model, so its constants carry one prefix more; a draft, or a module inside it, calls what it
// borrows "target.".
at::Tensor find_weight(std::string_view constant, const Weights& own, const Weights& target) {
  constexpr std::string_view kWrapped = "model.";
  constexpr std::string_view kBorrowed = "target.";
  if (constant.starts_with(kWrapped)) constant.remove_prefix(kWrapped.size());
  auto found = own.find(constant);
  if (found != own.end()) return found->second;
  const std::size_t borrowed = constant.rfind(kBorrowed);
  if (borrowed == std::string_view::npos) return {};
  found = target.find(constant.substr(borrowed + kBorrowed.size()));
  return found == target.end() ? at::Tensor() : found->second;
}

}  // namespace

AotiSession::AotiSession(const std::string& path, const Weights& own, const Weights& target) {
  // Asked before the loader, whose own message would speak of an archive that is not one.
  if (!std::filesystem::is_regular_file(path)) {
    throw Error(path + " is missing; rebuild the engine with trtspec-build");
  }
  try {
    loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(path);
  } catch (const std::exception& error) {
    throw Error(path + " cannot be loaded (" + reason_of(error) +
                "); it is unpacked into the temporary folder (TMPDIR), which must exist, have room "
                "and take programs; if that is so, rebuild the engine with trtspec-build");
  }
  std::unordered_map<std::string, at::Tensor> constants;
  for (const std::string& name : loader_->get_constant_fqns()) {
    const at::Tensor weight = find_weight(name, own, target);
    if (!weight.defined()) {
      throw Error(path + " needs the weight '" + name +
                  "', which its folder lacks; rebuild the engine with trtspec-build");
    }
    constants[name] = weight;
  }
  loader_->load_constants(constants, /*use_inactive=*/false, /*check_full_update=*/true,
                          /*user_managed=*/true);
  // The package keeps no reference.
  for (auto& constant : constants) weights_.push_back(std::move(constant.second));
}

AotiSession::~AotiSession() = default;

std::vector<at::Tensor> AotiSession::run(std::vector<at::Tensor> inputs) {
  try {
    return loader_->boxed_run(std::move(inputs));
  } catch (const std::exception& error) {
    throw Error(reason_of(error));
  }
}

}  // namespace trtspec
