#include "trtspec/runtime/open_engine.hpp"

#include <stdexcept>
#include <trtspec/runtime/aoti_session.hpp>
#include <trtspec/runtime/networks.hpp>
#include <trtspec/runtime/onnx_session.hpp>
#include <trtspec/runtime/rollouts.hpp>
#include <trtspec/runtime/tensorrt_session.hpp>
#include <utility>

namespace trtspec {

namespace {

// Prefix of the names of what a draft borrows of its target.
constexpr const char* kBorrowed = "target.";
constexpr std::size_t kFirstMask = 3;  // among a graph's inputs

std::size_t num_caches(const DecoderShape& shape) { return shape.num_buffers(); }

// Which of the caches hold states.
std::vector<std::int64_t> state_places(const DecoderShape& shape) {
  std::vector<std::int64_t> places;
  for (std::int64_t place = 0; const LayerCache& cache : shape.caches) {
    for (const LayerCache::Buffer& buffer : cache.buffers) {
      if (buffer.kind == LayerCache::Kind::slot) places.push_back(place);
      ++place;
    }
  }
  return places;
}

at::Tensor find(const Weights& weights, const std::string& name) {
  const auto found = weights.find(name);
  return found == weights.end() ? at::Tensor() : found->second;
}

}  // namespace

EngineOpener::EngineOpener(const EngineFolder& folder, const Libraries& libraries,
                           std::int64_t max_batch_size)
    : folder_(folder),
      libraries_(libraries),
      device_(libraries.make_device()),
      max_batch_size_(max_batch_size) {
  if (!libraries_.tensorrt) {
    target_weights_ = open_weights(folder.target_weights(), folder.target_record);
  }
}

SessionEngine::Parts EngineOpener::target() const {
  const DecoderShape& shape = folder_.target;
  std::unique_ptr<Session> session, replay;
  if (folder_.build.has_slots()) {
    const std::size_t caches = num_caches(shape);
    session = std::make_unique<TargetNetwork>(
        slot_graph(folder_.target_graph(), target_weights_, shape, caches), caches);
  } else {
    const auto open = [&](const std::string& path) {
      return std::make_unique<AotiSession>(path, target_weights_, Weights());
    };
    session = open(folder_.target_model());
    if (shape.keeps_states()) replay = open(folder_.target_replay());
  }
  return {.model = {std::move(session), {1, folder_.target.pass_bytes}},
          .rollout = {},
          .step = {},
          .loop = nullptr,
          .replay = std::move(replay)};
}

SessionEngine::Parts EngineOpener::draft() const {
  if (!folder_.draft) throw std::logic_error(folder_.path + " has no draft to open");
  // TensorRT's engines have their own; what is left to the host of these is small.
  const Weights own = open_weights(folder_.draft_weights(), folder_.draft_record,
                                   libraries_.tensorrt ? StoredIn::file : StoredIn::memory);
  DraftSessions sessions;
  if (folder_.build.has_slots()) {
    sessions = folder_.draft->num_modules > 0 ? lowered_modules(own) : lowered_draft(own);
  } else {
    sessions = compiled_draft(own);
  }
  // Of several modules a call reads each once, either way.
  const std::int64_t passes = folder_.rollout_passes(), once = folder_.draft->decoder.pass_bytes;
  if (folder_.draft->by_pass) {
    return {.model = {},
            .rollout = {std::move(sessions.rollout), {1, once}},
            .step = {},
            .loop = std::make_unique<PassRollout>(folder_.speculation->tree(),
                                                  folder_.layout().tokens_per_block,
                                                  state_places(folder_.draft->decoder))};
  }
  return {.model = {std::move(sessions.model), {1, once}},
          .rollout = {std::move(sessions.rollout), {passes, folder_.rollout_weight_bytes()}},
          .step = {std::move(sessions.step), {1, once}}};
}

EngineOpener::DraftSessions EngineOpener::compiled_draft(const Weights& own) const {
  const auto open = [&](const std::string& path) {
    return std::make_unique<AotiSession>(path, own, target_weights_);
  };
  if (folder_.draft->by_pass) {
    return {.model = {}, .rollout = open(folder_.draft_pass()), .step = {}};
  }
  DraftSessions sessions{.model = {}, .rollout = open(folder_.draft_rollout()), .step = {}};
  if (folder_.draft->num_modules > 0) {
    sessions.model = open(folder_.draft_model());
  } else if (folder_.speculation->num_steps > 1) {
    sessions.step = open(folder_.draft_step());
  }
  return sessions;
}

EngineOpener::DraftSessions EngineOpener::lowered_draft(const Weights& own) const {
  const DraftShape& draft = *folder_.draft;
  Weights weights = own;
  for (const auto& [name, tensor] : target_weights_) weights[kBorrowed + name] = tensor;
  const std::size_t caches = num_caches(draft.decoder);
  const auto path = [&](const char* name) { return folder_.draft_graph(name); };
  auto network = std::make_shared<DraftNetwork>(
      DraftNetwork::Parts{.pass = slot_graph(path("pass"), weights, draft.decoder, caches),
                          .head = graph(path("head"), weights),
                          .fuse = draft.reads_states ? graph(path("fuse"), weights) : nullptr,
                          .token_map = find(own, "token_map"),
                          .mask_hidden = find(own, "mask_hidden"),
                          .device = device_},
      caches);
  const TreeShape shape = folder_.speculation->tree();
  const std::int64_t length = folder_.layout().tokens_per_block;
  DraftSessions sessions;
  if (draft.mask_token) {
    sessions.rollout = std::make_unique<ParallelRollout>(network, shape, length, *draft.mask_token);
  } else {
    sessions.rollout = std::make_unique<TreeRollout>(network, shape, length);
  }
  sessions.step = std::make_unique<TreeRollout>(network, shape.first_step(), length);
  return sessions;
}

EngineOpener::DraftSessions EngineOpener::lowered_modules(const Weights& own) const {
  const DraftShape& draft = *folder_.draft;
  const std::size_t caches = num_caches(draft.decoder);
  const auto count = static_cast<std::size_t>(draft.num_modules);
  std::vector<DraftNetwork> depths;
  for (std::size_t depth = 0; depth < count; ++depth) {
    const std::string number = std::to_string(depth), prefix = "depths." + number + ".";
    Weights weights = own;
    for (const auto& [name, tensor] : target_weights_) {
      weights[prefix + kBorrowed + name] = tensor;
    }
    depths.emplace_back(
        DraftNetwork::Parts{.pass = slot_graph(folder_.draft_graph("pass-" + number), weights,
                                               draft.decoder, caches / count),
                            .head = graph(folder_.draft_graph("head-" + number), weights),
                            .fuse = nullptr,
                            .token_map = find(own, prefix + "token_map"),
                            .mask_hidden = {},
                            .device = device_},
        caches / count);
  }
  const auto stack = std::make_shared<ModuleStack>(std::move(depths), caches);
  return {.model = std::make_unique<ModulesFeed>(stack),
          .rollout = std::make_unique<VanillaRollout>(stack),
          .step = {}};
}

std::unique_ptr<Session> EngineOpener::graph(const std::string& path,
                                             const Weights& weights) const {
  if (libraries_.tensorrt) return std::make_unique<TensorRTSession>(libraries_.tensorrt, path);
  return std::make_unique<OnnxSession>(libraries_.onnxruntime, path, weights);
}

SlotGraph EngineOpener::slot_graph(const std::string& path, const Weights& weights,
                                   const DecoderShape& shape, std::size_t num_caches) const {
  SlotShape slots{.length = folder_.layout().tokens_per_block,
                  .widest = folder_.speculative_rows(),
                  .windows = shape.windows()};
  if (libraries_.tensorrt) {
    auto session = std::make_unique<TensorRTSession>(libraries_.tensorrt, path, num_caches);
    if (session->max_batch() < max_batch_size_) {
      throw Error(path + " takes at most " + std::to_string(session->max_batch()) +
                  " requests in a call, max_batch_size is " + std::to_string(max_batch_size_) +
                  "; lower it, or rebuild the engine with trtspec-build");
    }
    if (session->varies(kFirstMask)) slots.view = View::kPowers;
    return SlotGraph(std::move(session), std::move(slots), device_);
  }
  auto session = std::make_unique<OnnxSession>(libraries_.onnxruntime, path, weights, num_caches);
  const std::vector<std::int64_t> mask = session->input_sizes(kFirstMask);
  if (!mask.empty() && mask.back() < 0) slots.view = View::kSteps;
  return SlotGraph(std::move(session), std::move(slots), device_);
}

}  // namespace trtspec
