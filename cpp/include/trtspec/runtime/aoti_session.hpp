// AotiSession: a package that AOTInductor compiled.
#pragma once

#include <memory>
#include <string>
#include <trtspec/runtime/session.hpp>
#include <trtspec/runtime/weights.hpp>
#include <vector>

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace trtspec {

class AotiSession final : public Session {
 public:
  // Runs over weights that it does not copy: `own`, and what a draft borrows of `target`. Throws
  // Error for a package that is missing or cannot be loaded, or that needs weights which neither
  // has.
  AotiSession(const std::string& path, const Weights& own, const Weights& target);
  ~AotiSession() override;

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

 private:
  std::vector<at::Tensor> weights_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

}  // namespace trtspec
