// Sequence: the tokens of one request, as the books of a step know them.
#pragma once

#include <cstdint>
#include <vector>

namespace trtspec {

// What steps that were launched and not yet collected do to a request. How many tokens one that
// generates emits is not known before: the next begins behind `least`, and may go as far as `most`.
struct InFlight {
  std::int64_t launches = 0;
  std::int64_t rows = 0;  // that are certainly committed: the prompt's, and a root of each
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
  std::int64_t id = 0;  // unique among those of a ResourceManager
  std::vector<std::int64_t> tokens;  // prompt and output so far, the newest one last
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_output_tokens = 0;  // that it may emit in all, cut to what max_seq_len leaves
  InFlight in_flight = {};

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_output_tokens() const { return size() - num_prompt_tokens; }
  // Tokens it may still emit. A step emits at most depth + 1, so nodes deeper than
  // remaining_tokens() - 1 are of no use.
  std::int64_t remaining_tokens() const { return num_prompt_tokens + max_output_tokens - size(); }
};

}  // namespace trtspec
