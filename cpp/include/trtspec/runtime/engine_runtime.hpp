// EngineRuntime: from an engine folder to a running executor: weights, engines, caches, drafter.
//
//   const EngineFolder folder = EngineFolder::read("engine");
//   EngineRuntime runtime(folder, runtime_limits(folder.build), Speculation::of(folder), {},
//                         Libraries::load(folder, {}));
//   runtime.executor().add(...);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <trtspec/runtime/engine_folder.hpp>
#include <trtspec/runtime/executor.hpp>
#include <trtspec/runtime/libraries.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>
#include <trtspec/runtime/session_engine.hpp>
#include <trtspec/runtime/suffix_drafter.hpp>

namespace trtspec {

// What a runtime may use of its engine: the build's limits, or the smaller ones that were asked
// for. Throws Error for larger ones, naming both.
SchedulerLimits runtime_limits(const BuildLimits& build,
                               std::optional<std::int64_t> max_batch_size = std::nullopt,
                               std::optional<std::int64_t> max_num_tokens = std::nullopt,
                               std::optional<std::int64_t> max_seq_len = std::nullopt);

// How to draft.
struct Speculation {
  // Where drafts come from: nowhere, the text, an index of texts, or the draft in the folder.
  enum class Source { none, ngram, suffix, draft };
  static constexpr std::string_view kNone = "none";
  static constexpr std::int64_t kDefaultNgramLength = 5;
  static constexpr std::int32_t kDefaultMinNgram = 2;
  static constexpr std::int32_t kDefaultMaxNgram = 5;

  Source source = Source::none;
  std::string method{kNone};  // by name; of the draft in the folder, what that was built for
  // Most draft tokens on one path: K of a chain, depth D of a tree; suffix: all nodes counted; 0
  // without speculation.
  std::int64_t max_draft_len = 0;
  double p_min = 0.0;  // of a draft whose passes are calls of their own, see StopRule
  std::int32_t min_ngram = kDefaultMinNgram;
  std::int32_t max_ngram = kDefaultMaxNgram;
  SuffixDecoding suffix = {};  // but for its length, which is max_draft_len

  // What the folder was built for, else none.
  static Speculation of(const EngineFolder& folder);
  // Throws Error for a method that the folder has no draft for, a length beyond the built one, or
  // options of a method that cannot be.
  void check(const EngineFolder& folder) const;
  DrafterNeeds needs(const EngineFolder& folder) const;
  // The options of suffix decoding with this length.
  SuffixDecoding suffix_decoding() const;
};

// Where the drafts of a method come from: any method but those that need no draft drafts by the one
// in the folder.
Speculation::Source source_named(std::string_view method);

struct KvCacheOptions {
  bool enable_block_reuse = true;  // of paged caches; slots share nothing
  // Tokens that the caches hold at most, over all requests; none: as many as free_memory_fraction
  // of the available memory takes, and never more than full requests in a full batch can use.
  std::optional<std::int64_t> max_tokens;
  double free_memory_fraction = 0.5;
  // Of a model that keeps states, blocks between two snapshots in a prefix; see trtspec.KvCacheConfig.
  std::int64_t snapshot_blocks = 16;
};

// Blocks, or slots, of the target's and the draft's cache: one budget in tokens, shared out by
// bytes. Each request of a full batch may need its drafts on top of its own tokens, for which a
// slot has room. States of requests come first; of prefixes there is room for as many as the tokens of
// the cache could have. free_bytes: of memory, to take the fraction of. Throws Error if not even one
// block, or not all states, fit.
struct CacheBlocks {
  std::int64_t target;
  std::int64_t draft;  // 0 without a draft cache
  StateSizes states;   // of the target
  StateSizes draft_states;
  std::int64_t scratch_states;  // of the draft, behind those: see BeamStates; one at least

  static CacheBlocks of(const EngineFolder& folder, const SchedulerLimits& limits,
                        const DrafterNeeds& needs, const KvCacheOptions& options,
                        std::int64_t free_bytes);
};

// Owns everything that an executor runs on. Not thread-safe.
class EngineRuntime {
 public:
  // Throws Error for anything that the folder, the limits or the memory do not allow.
  EngineRuntime(const EngineFolder& folder, const SchedulerLimits& limits,
                const Speculation& speculation, const KvCacheOptions& kv,
                const Libraries& libraries);

  Executor& executor() { return *executor_; }
  const SessionEngine& target() const { return *target_; }
  const SessionEngine* draft() const { return draft_.get(); }  // null without a draft engine
  const ResourceManager& resources() const { return *resources_; }
  // Tokens that the target's cache holds.
  std::int64_t kv_cache_tokens() const {
    return resources_->target().num_blocks() * resources_->target().block_size();
  }

 private:
  std::unique_ptr<SessionEngine> target_;
  std::unique_ptr<SessionEngine> draft_;
  std::unique_ptr<ResourceManager> resources_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace trtspec
