#include "trtspec/runtime/tensorrt_session.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <trtspec/error.hpp>
#include <trtspec/files.hpp>
#include <utility>

namespace trtspec {

namespace {

// The optimisation profiles of every engine, in their order.
constexpr std::array<const char*, 2> kProfiles{"verify", "prefill"};
// Bytes; TensorRT counts on as much where nothing else was agreed on.
constexpr std::size_t kAlignment = 256;
// The output that stays on the GPU.
constexpr const char* kLogits = "logits";

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool fits(at::IntArrayRef sizes, const SizeLimits& limits) {
  const std::size_t dim = sizes.size();
  if (dim != limits.smallest.size() || dim != limits.largest.size()) return false;
  for (std::size_t i = 0; i < dim; ++i) {
    if (sizes[i] < limits.smallest[i] || sizes[i] > limits.largest[i]) return false;
  }
  return true;
}

std::string joined(std::span<const EngineTensor> tensors) {
  std::string text;
  for (const EngineTensor& tensor : tensors) text += (text.empty() ? "" : ", ") + tensor.name;
  return text;
}

}  // namespace

TensorRTSession::TensorRTSession(std::shared_ptr<TensorRT> tensorrt, const std::string& path,
                                 std::size_t num_caches)
    : tensorrt_(std::move(tensorrt)),
      path_(path),
      num_caches_(num_caches),
      scratch_(tensorrt_->gpu()),
      device_inputs_(tensorrt_->gpu()),
      device_outputs_(tensorrt_->gpu()) {
  try {
    const MappedFile plan(path);  // as large as the weights, which TensorRT copies to the GPU
    engine_ = tensorrt_->deserialize(
        {reinterpret_cast<const char*>(plan.bytes().data()), plan.bytes().size()}, path);
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + "; rebuild the engine with trtspec-build");
  }
  for (const EngineTensor& tensor : engine_->tensors()) {
    (tensor.is_input ? inputs_ : outputs_).push_back(tensor);
  }
  check_caches();
  scratch_.reserve(std::max<std::size_t>(engine_->scratch_bytes(), 1));
  for (std::int64_t profile = 0; profile < engine_->num_profiles(); ++profile) {
    Profile& made = profiles_.emplace_back();
    made.context = engine_->new_context(profile, scratch_);
    for (const EngineTensor& input : inputs_) {
      made.limits.push_back(engine_->limits(input.name, profile));
    }
  }
}

// They must be where `run` takes them to be: TensorRT orders an engine's tensors.
void TensorRTSession::check_caches() const {
  bool found = inputs_.size() >= num_caches_ && outputs_.size() >= num_caches_;
  for (std::size_t i = 1; found && i <= num_caches_; ++i) {
    found = outputs_[outputs_.size() - i].name == inputs_[inputs_.size() - i].name + "_out";
  }
  if (found) return;
  throw Error(path_ + " has inputs " + joined(inputs_) + " and outputs " + joined(outputs_) +
              ", of which the last " + std::to_string(num_caches_) +
              " should be its caches; this is a fault of trtspec, report it");
}

std::int64_t TensorRTSession::max_batch() const {
  std::int64_t most = 0;
  for (const Profile& profile : profiles_) {
    most = std::max(most, profile.limits.at(0).largest.at(0));
  }
  return most;
}

bool TensorRTSession::varies(std::size_t input) const {
  return std::ranges::any_of(profiles_, [&](const Profile& profile) {
    const SizeLimits& limits = profile.limits.at(input);
    return limits.smallest.back() < limits.largest.back();
  });
}

std::vector<at::Tensor> TensorRTSession::run(std::vector<at::Tensor> inputs) {
  if (inputs.size() != inputs_.size()) {
    throw std::logic_error("an engine of " + std::to_string(inputs_.size()) + " inputs was given " +
                           std::to_string(inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].is_contiguous() || inputs[i].scalar_type() != inputs_[i].dtype) {
      throw std::logic_error(inputs_[i].name + " is not as " + path_ + " reads it");
    }
  }
  TensorRTContext& context = *find_profile(inputs).context;
  stage(context, inputs);
  std::vector<at::Tensor> outputs = make_outputs(context);
  context.enqueue();
  fetch(outputs);
  return outputs;
}

TensorRTSession::Profile& TensorRTSession::find_profile(const std::vector<at::Tensor>& inputs) {
  std::string misfits;
  for (std::size_t i = 0; i < profiles_.size(); ++i) {
    Profile& profile = profiles_[i];
    std::size_t wrong = 0;
    while (wrong < inputs.size() && fits(inputs[wrong].sizes(), profile.limits[wrong])) ++wrong;
    if (wrong == inputs.size()) return profile;
    const SizeLimits& limits = profile.limits[wrong];
    std::ostringstream misfit;
    misfit << (misfits.empty() ? "" : "; ") << "profile "
           << (i < kProfiles.size() ? kProfiles[i] : std::to_string(i)) << " takes "
           << inputs_[wrong].name << " from " << at::IntArrayRef(limits.smallest) << " to "
           << at::IntArrayRef(limits.largest) << ", not " << inputs[wrong].sizes();
    misfits += misfit.str();
  }
  throw Error(path_ + " was not built for a call of this size: " + misfits +
              "; rebuild the engine with a larger max_batch_size or max_num_tokens");
}

// Gives the context its inputs, those of the host in one copy.
void TensorRTSession::stage(TensorRTContext& context, const std::vector<at::Tensor>& inputs) {
  const std::size_t count = inputs.size() - num_caches_;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += aligned(inputs[i].nbytes());
  host_inputs_.resize(std::max(bytes, host_inputs_.size()));
  device_inputs_.reserve(bytes);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    context.set_input_sizes(inputs_[i].name, inputs[i].sizes());
    if (i >= count) {
      context.set_address(inputs_[i].name, inputs[i].data_ptr());
      context.set_address(outputs_[outputs_.size() - inputs.size() + i].name, inputs[i].data_ptr());
      continue;
    }
    std::memcpy(host_inputs_.data() + begin, inputs[i].const_data_ptr(), inputs[i].nbytes());
    context.set_address(inputs_[i].name, device_inputs_.data() + begin);
    begin += aligned(inputs[i].nbytes());
  }
  tensorrt_->gpu()->copy_to_device(device_inputs_.data(), host_inputs_.data(), bytes);
}

// Outputs but the caches, each with room on the GPU: those that stay there as they are, the others
// on the host, to be filled.
std::vector<at::Tensor> TensorRTSession::make_outputs(TensorRTContext& context) {
  const std::size_t count = outputs_.size() - num_caches_;
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < count; ++i) {
    sizes.push_back(context.output_sizes(outputs_[i].name));
    std::size_t bytes = c10::elementSize(outputs_[i].dtype);
    for (const std::int64_t size : sizes.back()) bytes *= static_cast<std::size_t>(size);
    ends.push_back((i == 0 ? 0 : ends.back()) + aligned(bytes));
  }
  device_outputs_.reserve(ends.empty() ? 0 : ends.back());
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* data = device_outputs_.data() + (i == 0 ? 0 : ends[i - 1]);
    context.set_address(outputs_[i].name, data);
    const at::TensorOptions options = at::dtype(outputs_[i].dtype);
    outputs.push_back(outputs_[i].name == kLogits ? at::from_blob(data, sizes[i], options)
                                                  : at::empty(sizes[i], options));
  }
  return outputs;
}

void TensorRTSession::fetch(const std::vector<at::Tensor>& outputs) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs_[i].name != kLogits) {
      tensorrt_->gpu()->copy_to_host(outputs[i].mutable_data_ptr(), device_outputs_.data() + begin,
                                     outputs[i].nbytes());
    }
    begin += aligned(outputs[i].nbytes());
  }
  tensorrt_->gpu()->synchronize();
}

}  // namespace trtspec
