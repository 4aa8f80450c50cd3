// Options: what trtspec_benchmark is asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <trtspec/runtime/engine_runtime.hpp>
#include <vector>

#include "flags.hpp"

namespace trtspec::bench {

struct Options {
  bool help = false;
  std::string engine_dir;
  std::string dataset;
  std::optional<std::int64_t> max_num_samples;
  std::int64_t warm_up = 2;

  // When requests arrive: all at once, at a rate, or so that so many are always under way.
  std::optional<double> request_rate;  // requests a second
  bool exponential_delays = false;
  std::optional<std::int64_t> concurrency;

  std::optional<std::int64_t> max_batch_size;
  std::optional<std::int64_t> max_num_tokens;
  std::optional<std::int64_t> max_seq_len;
  KvCacheOptions kv;
  Libraries::Paths libraries;

  SamplingOptions sampling;  // of every request; `seed` is that of the first one
  std::vector<std::int64_t> eos_ids;

  std::optional<std::string> method;          // none: what the engine was built for
  std::optional<Speculation::Source> source;  // of its drafts
  std::optional<std::int64_t> max_draft_len;
  std::optional<double> p_min;
  std::optional<std::int32_t> min_ngram;
  std::optional<std::int32_t> max_ngram;
  SuffixDecoding suffix;

  std::optional<std::string> output_csv;
  std::optional<std::string> output_json;
  std::optional<std::string> responses_json;
  bool log_iteration_data = false;
  std::optional<std::int64_t> num_threads;
  std::vector<std::string> command_line;  // as it was given

  // Throws UsageError for flags that are unknown, malformed, missing or contradict each other.
  static Options parse(int argc, const char* const* argv);
  // How to draft with this engine; throws Error if it cannot.
  Speculation speculation(const EngineFolder& folder) const;
};

extern const char* const kHelp;

}  // namespace trtspec::bench
