#include "trtspec/runtime/engine_runtime.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/slot_kv_cache_manager.hpp>
#include <trtspec/runtime/open_engine.hpp>
#include <utility>

namespace trtspec {

namespace {

using Source = Speculation::Source;

// Those that need no draft in the folder, in the order of Source.
constexpr std::array kWithoutDraft{Speculation::kNone, NGramDrafter::kMethod,
                                   SuffixDrafter::kMethod};

std::int64_t chosen_limit(const char* name, std::optional<std::int64_t> asked, std::int64_t built) {
  if (!asked) return built;
  const std::string given = std::string(name) + "=" + std::to_string(*asked);
  if (*asked < 1) throw Error(given + " must be at least 1");
  if (*asked > built) {
    throw Error(given + " exceeds the " + std::to_string(built) +
                " that the engine was built for; lower it, or rebuild the engine with --" + name +
                " " + std::to_string(*asked));
  }
  return *asked;
}

std::shared_ptr<KVCache> make_cache(const CacheLayout& layout, std::int64_t num_blocks,
                                    std::int64_t window, bool enable_reuse,
                                    std::int64_t lookahead = 0, const StateSizes& states = {}) {
  if (layout.is_slots) {
    return std::make_shared<SlotKVCacheManager>(num_blocks, layout.tokens_per_block);
  }
  return std::make_shared<KVCacheManager>(num_blocks, layout.tokens_per_block, enable_reuse,
                                          lookahead, window, 0, states);
}

std::unique_ptr<Drafter> make_drafter(const Speculation& speculation, const EngineFolder& folder,
                                      SessionEngine* engine, ResourceManager& resources) {
  if (speculation.source == Source::none) return std::make_unique<NoDrafter>();
  if (speculation.source == Source::ngram) {
    return std::make_unique<NGramDrafter>(
        NGramOptions{speculation.max_draft_len, speculation.min_ngram, speculation.max_ngram});
  }
  if (speculation.source == Source::suffix) {
    return std::make_unique<SuffixDrafter>(speculation.suffix_decoding());
  }
  const RolloutShape shape = folder.rollout_shape(speculation.max_draft_len);
  if (folder.draft->reads_states) {
    return std::make_unique<HiddenStateDrafter>(*engine, resources, shape);
  }
  return std::make_unique<TokenDrafter>(*engine, resources, shape, speculation.p_min);
}

}  // namespace

SchedulerLimits runtime_limits(const BuildLimits& build, std::optional<std::int64_t> max_batch_size,
                               std::optional<std::int64_t> max_num_tokens,
                               std::optional<std::int64_t> max_seq_len) {
  const SchedulerLimits limits{
      .max_batch_size = chosen_limit("max_batch_size", max_batch_size, build.max_batch_size),
      .max_num_tokens = chosen_limit("max_num_tokens", max_num_tokens, build.max_num_tokens),
      .max_seq_len = chosen_limit("max_seq_len", max_seq_len, build.max_seq_len)};
  if (limits.max_num_tokens < limits.max_batch_size) {
    throw Error("max_num_tokens=" + std::to_string(limits.max_num_tokens) +
                " must be at least max_batch_size=" + std::to_string(limits.max_batch_size) +
                ", so that every request of a full batch gets a row; raise the former or lower the "
                "latter");
  }
  return limits;
}

Source source_named(std::string_view method) {
  const auto found = std::find(kWithoutDraft.begin(), kWithoutDraft.end(), method);
  return static_cast<Source>(found - kWithoutDraft.begin());
}

Speculation Speculation::of(const EngineFolder& folder) {
  Speculation speculation;
  if (folder.speculation) {
    speculation.method = folder.speculation->method;
    speculation.source = Source::draft;
    speculation.max_draft_len = folder.speculation->num_steps;
    speculation.p_min = folder.speculation->p_min;
  }
  return speculation;
}

void Speculation::check(const EngineFolder& folder) const {
  if (source == Source::none) return;
  if (source == Source::suffix) suffix_decoding().check();
  const std::string length = "max_draft_len=" + std::to_string(max_draft_len);
  if (max_draft_len < 1) throw Error(length + " must be at least 1");
  const std::int64_t window = folder.target.min_window();
  const std::int64_t depth =
      source == Source::suffix ? suffix_decoding().needs().max_depth : max_draft_len;
  if (window > 0 && depth >= window) {
    throw Error(length + " reaches past the target's sliding window of " + std::to_string(window) +
                " tokens; lower it to " + std::to_string(window - 1) + " or less");
  }
  const auto check_rows = [&](std::int64_t nodes) {
    const std::int64_t rows = folder.speculative_rows();
    if (nodes + 1 <= rows) return;
    throw Error(length + " needs " + std::to_string(nodes + 1) +
                " rows a step, the engine was built for " + std::to_string(rows) +
                "; lower it to " + std::to_string(rows - 1));
  };
  if (source == Source::suffix) return check_rows(suffix_decoding().needs().max_nodes);
  if (source == Source::ngram) {
    if (min_ngram < 1 || min_ngram > max_ngram) {
      throw Error("n-gram sizes " + std::to_string(min_ngram) + " to " + std::to_string(max_ngram) +
                  " must rise from at least 1");
    }
    return check_rows(max_draft_len);
  }
  const auto& built = folder.speculation;
  if (!built) {
    throw Error("method " + method + " needs a draft, but " + folder.path +
                " was built without one; use ngram, suffix or none, or rebuild it with a draft");
  }
  if (built->method != method) {
    throw Error("method " + method + " was asked for, the draft in " + folder.path +
                " was built for " + built->method + "; ask for that, for ngram, suffix or none, " +
                "or rebuild it");
  }
  if (max_draft_len > built->num_steps) {
    throw Error(length + " was asked for, the engine was built for at most " +
                std::to_string(built->num_steps) + "; lower it or rebuild the engine");
  }
  if (p_min > 0.0 && !folder.draft->by_pass) {
    throw Error("p_min=" + std::to_string(p_min) + " ends drafts between the passes of a draft; " +
                folder.path + " drafts all depths in one call, leave it out");
  }
  if (!built->choices.empty() && max_draft_len != built->num_steps) {
    throw Error(length + " was asked for, the engine's static tree has " +
                std::to_string(built->num_steps) + " steps, which are fixed at build");
  }
}

SuffixDecoding Speculation::suffix_decoding() const {
  SuffixDecoding config = suffix;
  config.max_draft_len = max_draft_len;
  return config;
}

DrafterNeeds Speculation::needs(const EngineFolder& folder) const {
  if (source == Source::none) return {};
  if (source == Source::ngram) {
    return {.max_nodes = max_draft_len, .max_depth = max_draft_len};
  }
  if (source == Source::suffix) return suffix_decoding().needs();
  return folder.rollout_shape(max_draft_len).needs();
}

CacheBlocks CacheBlocks::of(const EngineFolder& folder, const SchedulerLimits& limits,
                            const DrafterNeeds& needs, const KvCacheOptions& options,
                            std::int64_t free_bytes) {
  if (options.max_tokens && *options.max_tokens < 1) {
    throw Error("kv_cache_max_tokens=" + std::to_string(*options.max_tokens) +
                " must be at least 1");
  }
  const double fraction = options.free_memory_fraction;
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    throw Error("kv_cache_free_memory_fraction=" + std::to_string(fraction) +
                " must be above 0 and at most 1");
  }
  const CacheLayout layout = folder.layout();
  const std::int64_t size = layout.tokens_per_block;
  std::int64_t token_bytes = folder.target.kv_bytes_per_token;
  if (needs.has_draft_cache) token_bytes += folder.draft->decoder.kv_bytes_per_token;
  const std::int64_t wanted =
      limits.max_batch_size * (layout.is_slots ? size : limits.max_seq_len + size);
  const auto budget = static_cast<std::int64_t>(static_cast<double>(free_bytes) * fraction);
  const std::int64_t state = folder.target.row_bytes(LayerCache::Kind::slot);
  const std::int64_t draft_state =
      needs.has_draft_cache ? folder.draft->decoder.row_bytes(LayerCache::Kind::slot) : 0;
  const std::int64_t scratch =
      draft_state == 0
          ? 1
          : std::max<std::int64_t>(limits.max_batch_size * folder.speculation->widest_pass(), 1);
  const std::int64_t states =
      (limits.max_batch_size + 1) * state +
      limits.max_num_tokens * folder.target.row_bytes(LayerCache::Kind::step) +
      (limits.max_batch_size + scratch) * draft_state;
  if (states > budget) {
    throw Error("the states of max_batch_size " + std::to_string(limits.max_batch_size) +
                " requests take " + std::to_string(states) + " bytes, the caches may take " +
                std::to_string(budget) +
                "; lower max_batch_size, or raise kv_cache_free_memory_fraction");
  }
  // Bytes of the tokens from one snapshot to the next.
  const std::int64_t apart = options.snapshot_blocks * size;
  const std::int64_t stretch =
      token_bytes * apart + (options.enable_block_reuse ? state + draft_state : 0);
  const std::int64_t affordable =
      stretch == 0 ? wanted : (budget - states) * apart / stretch;  // a state may be all there is
  const std::int64_t tokens = std::min({wanted, affordable, options.max_tokens.value_or(wanted)});
  if (tokens < size) {
    throw Error("the KV cache would hold " + std::to_string(tokens) + " tokens, less than one " +
                (layout.is_slots ? "slot" : "block") + " of " + std::to_string(size) +
                "; raise kv_cache_max_tokens or kv_cache_free_memory_fraction (" +
                std::to_string(stretch / apart) + " bytes a token)");
  }
  const auto spare = [&](std::int64_t rows) {
    return options.max_tokens || layout.is_slots
               ? 0
               : limits.max_batch_size * ((rows + size - 1) / size);
  };
  const std::int64_t base = tokens / size, target = base + spare(needs.max_nodes);
  const std::int64_t draft = needs.has_draft_cache ? base + spare(needs.draft_slots) : 0;
  const auto states_of = [&](std::int64_t bytes, std::int64_t blocks) -> StateSizes {
    if (bytes == 0) return {};
    const std::int64_t most = std::max<std::int64_t>(blocks / options.snapshot_blocks, 1);
    return {.num_states = limits.max_batch_size,
            .num_snapshots = options.enable_block_reuse ? most : 0,
            .blocks_apart = options.snapshot_blocks};
  };
  return {.target = target,
          .draft = draft,
          .states = states_of(state, target),
          .draft_states = states_of(draft_state, draft),
          .scratch_states = scratch};
}

EngineRuntime::EngineRuntime(const EngineFolder& folder, const SchedulerLimits& limits,
                             const Speculation& speculation, const KvCacheOptions& kv,
                             const Libraries& libraries) {
  speculation.check(folder);
  const DrafterNeeds needs = speculation.needs(folder);
  const auto plan = [&] {
    return CacheBlocks::of(folder, limits, needs, kv, libraries.free_memory());
  };
  plan();  // what cannot fit is refused before anything is read
  const EngineOpener opener(folder, libraries, limits.max_batch_size);
  SessionEngine::Parts target = opener.target(), draft;
  if (needs.has_draft_cache) draft = opener.draft();
  // On a device the engines' weights take memory of the same kind, and have it by now.
  const CacheBlocks blocks = plan();
  const auto with_caches = [&](const DecoderShape& shape, const SessionEngine::Sizes& sizes,
                               SessionEngine::Parts&& parts) {
    return std::make_unique<SessionEngine>(folder, shape, sizes, opener.device(), std::move(parts));
  };
  const CacheLayout layout = folder.layout();
  target_ = with_caches(folder.target,
                        {.num_blocks = blocks.target,
                         .num_states = blocks.states.num_states + blocks.states.num_snapshots + 1,
                         .num_rows = limits.max_num_tokens},
                        std::move(target));
  std::vector<ResourceManager::Draft> drafts;
  if (needs.has_draft_cache) {
    const StateSizes& states = blocks.draft_states;
    draft_ =
        with_caches(folder.draft->decoder,
                    {.num_blocks = blocks.draft,
                     .num_states = states.num_states + states.num_snapshots + blocks.scratch_states,
                     .num_rows = 1},  // none can be rejected
                    std::move(draft));
    const std::int64_t window = folder.draft->decoder.widest_window();
    drafts.push_back(
        {make_cache(layout, blocks.draft, window, kv.enable_block_reuse, needs.lookahead, states),
         !needs.reads_hidden});
  }
  resources_ = std::make_unique<ResourceManager>(
      make_cache(layout, blocks.target, folder.target.widest_window(), kv.enable_block_reuse, 0,
                 blocks.states),
      std::move(drafts));
  executor_ = std::make_unique<Executor>(
      *target_, *resources_, make_drafter(speculation, folder, draft_.get(), *resources_), limits);
}

}  // namespace trtspec
