// Sequence: the tokens of one request, as the books of a step know them.
#pragma once

#include <cstdint>
#include <vector>

namespace trtspec {

struct Sequence {
  std::int64_t id = 0;  // unique among those of a ResourceManager
  std::vector<std::int64_t> tokens;  // prompt and output so far, the newest one last
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_output_tokens = 0;  // that it may emit in all, cut to what max_seq_len leaves

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_output_tokens() const { return size() - num_prompt_tokens; }
  // Tokens it may still emit. A step emits at most depth + 1, so nodes deeper than
  // remaining_tokens() - 1 are of no use.
  std::int64_t remaining_tokens() const { return num_prompt_tokens + max_output_tokens - size(); }
};

}  // namespace trtspec
