// From an engine folder to its engines, whatever its backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/linear_graph.hpp>
#include <trtspec/runtime/onnx_session.hpp>
#include <trtspec/runtime/session_engine.hpp>
#include <trtspec/runtime/weights.hpp>

namespace trtspec {

// Opens the engines of a folder over its weights, which are mapped and not copied.
class EngineOpener {
 public:
  // onnxruntime: see OnnxRuntime::load, which is asked for backend onnx alone.
  EngineOpener(const EngineFolder& folder, const std::string& onnxruntime);

  // The target, or the draft, with caches of num_blocks blocks. What the draft borrows of its
  // target is the target's own memory. Throws Error for artifacts that are missing or cannot be
  // loaded, or that need weights which the folder lacks.
  std::unique_ptr<SessionEngine> target(std::int64_t num_blocks) const;
  std::unique_ptr<SessionEngine> draft(std::int64_t num_blocks) const;

 private:
  // The model and the rollout of a draft.
  struct DraftSessions {
    std::unique_ptr<Session> model;
    std::unique_ptr<Session> rollout;
  };

  DraftSessions lowered_draft(const Weights& own) const;
  DraftSessions lowered_modules(const Weights& own) const;
  std::unique_ptr<OnnxSession> graph(const std::string& path, const Weights& weights,
                                     std::size_t num_caches = 0) const;
  LinearGraph linear_graph(const std::string& path, const Weights& weights,
                           const DecoderShape& shape, std::size_t num_caches) const;

  const EngineFolder& folder_;
  Weights target_weights_;
  std::shared_ptr<const OnnxRuntime> onnxruntime_;
};

}  // namespace trtspec
