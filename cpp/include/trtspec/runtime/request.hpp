// Request: one sequence being generated, from its arrival to its finish reason.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <trtspec/logits_processor.hpp>
#include <trtspec/scheduler.hpp>
#include <trtspec/sequence.hpp>
#include <trtspec/text_end.hpp>
#include <vector>

namespace trtspec {

// What one request asks of the sampler. Stop strings, bad words that are strings and grammars need a
// tokenizer and are not part of this runtime; the Python one has them.
struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0 or -1: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off
  std::int64_t seed = 0;     // the same seed gives the same text, whatever else runs
  std::int64_t sample_index = 0;
  std::int64_t max_tokens = 32;  // most tokens to generate; cut to what max_seq_len leaves
  bool ignore_eos = false;
  std::vector<std::int64_t> stop_token_ids;
  LogitsOptions logits = {};
  // How many best tokens to report of each position beside the emitted one, by the raw model.
  std::optional<std::int64_t> logprobs = std::nullopt;
  // Depth of its drafts; 0: it is not drafted for. Left out: as deep as the drafter goes.
  std::optional<std::int64_t> num_speculative_tokens = std::nullopt;

  // Throws Error for a value that cannot be honoured; names it and the limit.
  void check() const;
  // Throws Error for a token of a bias or a bad word that is not below vocab_size.
  void check_vocabulary(std::int64_t vocab_size) const;
};

// "none", "stop", "length", "error" or "abort".
const char* name_of(FinishReason reason);

// One sequence. A step feeds rows tokens[committed : committed + n] of the target cache. With one
// row left (the root) the request *generates*: draft nodes may follow it. A longer remainder is
// prefill, and the chunk that reaches the end samples its last row. This holds after a preemption
// as well, and for a prompt of which all but one token came out of the prefix cache.
//
// A lower id arrived earlier.
struct Request : Sequence {
  SamplingOptions options;
  std::vector<std::int64_t> end_tokens;  // EOS, unless it is to be ignored, and the stop tokens
  // Prompt tokens that it found in the caches when it first began; -1 until then.
  std::int64_t num_cached_tokens = -1;
  FinishReason finish_reason = FinishReason::none;

  // A new request over a copy of `prompt`. Throws Error if the prompt is empty or
  // leaves no room for an output token within max_seq_len tokens, or an option is out of range.
  static Request create(std::int64_t id, std::span<const std::int64_t> prompt,
                        SamplingOptions options, std::int64_t max_seq_len,
                        std::vector<std::int64_t> eos_token_ids = {});

  bool is_finished() const { return finish_reason != FinishReason::none; }
};

// Schedulers of both step loops are given requests, and nothing else.
inline Request& request_of(const ScheduledRows& item) {
  return static_cast<Request&>(*item.sequence);
}

}  // namespace trtspec
