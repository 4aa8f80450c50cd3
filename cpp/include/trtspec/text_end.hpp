// Where a text ends by its tokens alone: stop strings need a tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <trtspec/finish_reason.hpp>

namespace trtspec {

// How many of the tokens that a step emits belong to a text, the one that ends it included, and why
// it ends with the last of these; `none` if it goes on.
struct TextEnd {
  std::size_t count;
  FinishReason reason;
};

// end_tokens: those that end the text, with `stop`. remaining: how many it may still emit, at least
// one; the last of them ends it with `length`.
TextEnd text_end(std::span<const std::int64_t> tokens, std::span<const std::int64_t> end_tokens,
                 std::int64_t remaining);

}  // namespace trtspec
