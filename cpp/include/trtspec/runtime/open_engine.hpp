// From an engine folder to its engines, whatever its backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/libraries.hpp>
#include <trtspec/runtime/slot_graph.hpp>
#include <trtspec/runtime/session_engine.hpp>
#include <trtspec/runtime/weights.hpp>

namespace trtspec {

// Opens the engines of a folder: over its weights, which they share, or, of backend
// tensorrt, with those that lie in them.
class EngineOpener {
 public:
  // libraries: those of the folder. max_batch_size: requests in one step.
  EngineOpener(const EngineFolder& folder, const Libraries& libraries, std::int64_t max_batch_size);

  // Where what it opens has its logits, and is to have its caches.
  const std::shared_ptr<Device>& device() const { return device_; }

  // The target, or the draft. What the draft borrows of its target is the target's own memory,
  // unless the backend is tensorrt. Throws Error for artifacts that are missing or cannot be
  // loaded, that need weights which the folder lacks, or that take fewer requests.
  SessionEngine::Parts target() const;
  SessionEngine::Parts draft() const;

 private:
  // Those of a draft, see SessionEngine::Parts.
  struct DraftSessions {
    std::unique_ptr<Session> model;
    std::unique_ptr<Session> rollout;
    std::unique_ptr<Session> step;
  };

  DraftSessions compiled_draft(const Weights& own) const;
  DraftSessions lowered_draft(const Weights& own) const;
  DraftSessions lowered_modules(const Weights& own) const;
  std::unique_ptr<Session> graph(const std::string& path, const Weights& weights) const;
  SlotGraph slot_graph(const std::string& path, const Weights& weights, const DecoderShape& shape,
                       std::size_t num_caches) const;

  const EngineFolder& folder_;
  Libraries libraries_;
  std::shared_ptr<Device> device_;
  std::int64_t max_batch_size_;
  Weights target_weights_;  // none of backend tensorrt
};

}  // namespace trtspec
