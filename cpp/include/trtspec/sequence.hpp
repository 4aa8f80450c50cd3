// Sequence: the tokens of one request, as the books of a step know them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace trtspec {

// What steps that were launched and not yet collected do to a request. How many tokens one that
// generates emits is not known before: the next begins behind `least`, and may go as far as `most`.
struct InFlight {
  std::int64_t launches = 0;
  std::int64_t rows = 0;   // that are certainly committed: the prompt's, and a root of each
  std::int64_t least = 0;  // tokens emitted, unless the text ends
  std::int64_t most = 0;

  InFlight& operator+=(const InFlight& launch) {
    launches += launch.launches;
    rows += launch.rows;
    least += launch.least;
    most += launch.most;
    return *this;
  }
  InFlight& operator-=(const InFlight& launch) {
    return *this += {-launch.launches, -launch.rows, -launch.least, -launch.most};
  }
};

struct Sequence {
  std::int64_t id = 0;               // unique among those of a ResourceManager
  std::vector<std::int64_t> tokens;  // prompt and output so far, the newest one last
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_output_tokens = 0;  // that it may emit in all, cut to what max_seq_len leaves
  // Depth of its drafts, as the request asks; 0: it is not drafted for, and holds nothing in the
  // drafts' caches.
  std::int64_t max_draft_len = std::numeric_limits<std::int64_t>::max();
  // The adapter by which the target reads it, a number above 0 that no other one ever had, and where
  // that lies among those of the engine. 0 and -1: none.
  std::int64_t adapter = 0;
  std::int32_t adapter_slot = -1;
  InFlight in_flight = {};

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_output_tokens() const { return size() - num_prompt_tokens; }
  // Tokens it may still emit.
  std::int64_t remaining_tokens() const { return num_prompt_tokens + max_output_tokens - size(); }
  bool may_draft() const { return max_draft_len > 0; }
  // Depth of the deepest draft node of use once `ahead` more tokens are emitted: a step emits at
  // most depth + 1. 0 or less: none is.
  std::int64_t draft_depth(std::int64_t ahead = 0) const {
    return std::min(remaining_tokens() - ahead - 1, max_draft_len);
  }
};

}  // namespace trtspec
