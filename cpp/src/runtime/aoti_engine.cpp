#include "trtspec/runtime/aoti_engine.hpp"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <chrono>
#include <filesystem>
#include <trtspec/kv_compact.hpp>
#include <trtspec/runtime/packing.hpp>
#include <unordered_map>
#include <utility>

namespace trtspec {

namespace {

at::ScalarType torch_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  return name == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

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

class AotiEngine::Package {
 public:
  Package(const std::string& path, const Weights& own, const Weights& target) {
    // Asked before the loader, whose own message would speak of an archive that is not one.
    if (!std::filesystem::is_regular_file(path)) {
      throw Error(path + " is missing; rebuild the engine with trtspec-build");
    }
    try {
      loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(path);
    } catch (const std::exception& error) {
      throw Error(path + " cannot be loaded (" + reason_of(error) +
                  "); rebuild the engine with trtspec-build");
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

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    try {
      return loader_->boxed_run(std::move(inputs));
    } catch (const std::exception& error) {
      throw Error(reason_of(error));
    }
  }

 private:
  std::vector<at::Tensor> weights_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

std::unique_ptr<AotiEngine> AotiEngine::open_target(const EngineFolder& folder,
                                                    const Weights& target_weights,
                                                    std::int64_t num_blocks) {
  std::unique_ptr<AotiEngine> engine(new AotiEngine(folder, folder.target, num_blocks));
  engine->model_passes_ = {1, folder.target_weight_bytes()};
  engine->model_ = std::make_unique<Package>(folder.target_model(), target_weights, Weights());
  return engine;
}

std::unique_ptr<AotiEngine> AotiEngine::open_draft(const EngineFolder& folder,
                                                   const Weights& target_weights,
                                                   std::int64_t num_blocks) {
  if (!folder.draft) throw std::logic_error(folder.path + " has no draft to open");
  const Weights own = map_weights(folder.draft_weights());
  std::unique_ptr<AotiEngine> engine(new AotiEngine(folder, folder.draft->decoder, num_blocks));
  const std::int64_t steps = folder.speculation->num_steps;
  // Of several modules a call reads each once, either way.
  const bool once = folder.draft->num_modules > 0 || folder.speculation->in_one_pass();
  const std::int64_t passes = once ? 1 : steps;
  engine->rollout_passes_ = {passes, folder.rollout_weight_bytes()};
  engine->model_passes_ = {1, folder.rollout_weight_bytes() / passes};
  engine->model_ = std::make_unique<Package>(folder.draft_model(), own, target_weights);
  engine->rollout_ = std::make_unique<Package>(folder.draft_rollout(), own, target_weights);
  return engine;
}

AotiEngine::AotiEngine(const EngineFolder& folder, const DecoderShape& shape,
                       std::int64_t num_blocks)
    : layout_(folder.layout()),
      shape_(shape),
      kv_bytes_per_token_(shape.kv_elements_per_token() * folder.element_bytes()) {
  const at::TensorOptions options = at::dtype(torch_dtype(folder.build.dtype));
  for (std::int64_t i = 0; i < 2 * shape_.num_layers; ++i) {
    caches_.push_back(at::zeros(
        {num_blocks, layout_.tokens_per_block, shape_.num_kv_heads, shape_.head_dim}, options));
  }
}

AotiEngine::~AotiEngine() = default;

AotiEngine::Output AotiEngine::forward(std::span<const RowGroup> groups) {
  auto [inputs, logits_rows] = pack(groups, layout_);
  const std::int64_t wanted = logits_rows.size(0);
  // A compiled engine wants at least one logits row; the middle of a prefill wants none.
  inputs.push_back(wanted > 0 ? logits_rows : at::zeros({1}, at::dtype(at::kLong)));
  std::vector<at::Tensor> outputs = run(*model_, std::move(inputs), groups, model_passes_);
  Output output{.logits = outputs.at(0).narrow(0, 0, wanted), .hidden = {}};
  if (outputs.size() > 1) output.hidden = outputs[1];
  return output;
}

void AotiEngine::feed(std::span<const RowGroup> groups, const at::Tensor& hidden) {
  std::vector<at::Tensor> inputs = pack(groups, layout_).rows;
  inputs.push_back(hidden);
  run(*model_, std::move(inputs), groups, model_passes_);
}

AotiEngine::Rollout AotiEngine::rollout(std::span<const RowGroup> groups,
                                        const SamplingColumns& sampling, const at::Tensor& hidden) {
  if (!rollout_) throw std::logic_error("this engine was opened without a rollout");
  auto [inputs, last_rows] = pack(groups, layout_);
  inputs.push_back(last_rows);
  inputs.insert(inputs.end(), sampling.begin(), sampling.end());
  if (hidden.defined()) inputs.push_back(hidden);
  const std::vector<at::Tensor> outputs =
      run(*rollout_, std::move(inputs), groups, rollout_passes_);
  return {.tokens = outputs.at(0), .parents = outputs.at(1), .scores = outputs.at(2)};
}

void AotiEngine::compact(std::span<const std::int64_t> src_slots,
                         std::span<const std::int64_t> dst_slots) {
  if (src_slots.size() != dst_slots.size()) {
    throw std::logic_error("compact: as many source as destination slots are needed");
  }
  std::vector<void*> data;
  for (const at::Tensor& cache : caches_) data.push_back(cache.mutable_data_ptr());
  const at::Tensor& first = caches_.front();
  kv_compact(data.data(), static_cast<std::int64_t>(data.size()),
             first.stride(1) * static_cast<std::int64_t>(first.element_size()),
             first.size(0) * first.size(1), src_slots.data(), dst_slots.data(),
             static_cast<std::int64_t>(src_slots.size()));
}

std::vector<at::Tensor> AotiEngine::run(Package& package, std::vector<at::Tensor> inputs,
                                        std::span<const RowGroup> groups, const Passes& passes) {
  inputs.insert(inputs.end(), caches_.begin(), caches_.end());
  const auto began = std::chrono::steady_clock::now();
  std::vector<at::Tensor> outputs = package.run(std::move(inputs));
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ++num_calls_;
  traffic_.weight_bytes += passes.weight_bytes;
  for (const RowGroup& group : groups) {
    traffic_.kv_bytes += passes.count * (group.context + group.num_rows()) * kv_bytes_per_token_;
  }
  return outputs;
}

}  // namespace trtspec
