// Samples: the prompts of a benchmark and how many tokens to generate for each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trtspec::bench {

struct Sample {
  std::vector<std::int64_t> input_ids;
  std::int64_t output_len;
};

// What the engine can run.
struct SampleLimits {
  std::int64_t vocab_size;
  std::int64_t max_seq_len;  // prompt and output together
};

// Reads {"samples": [{"input_ids": [...], "output_len": N, ...}, ...]}, or one such sample a line,
// as TensorRT-LLM's prepare_dataset writes them ("output_tokens" is the same as "output_len"; other
// members are left alone). At most max_num_samples of them. Throws Error for a file that is
// neither, without a sample, or with one that does not fit the limits; file, line, value and limit
// are named.
std::vector<Sample> read_samples(const std::string& path,
                                 std::optional<std::int64_t> max_num_samples,
                                 const SampleLimits& limits);

}  // namespace trtspec::bench
