// What a request emits once the walk through its rows is known (trtspec/acceptance.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <trtspec/text_end.hpp>
#include <vector>

namespace trtspec {

// The rows of one request: its root, then the nodes of its draft. tokens: that each carries; the
// root's is not read. parents: the parent's row; the root's is not read. sampled: what each emits,
// negative for a row without a usable number.
struct VerifiedRows {
  std::span<const std::int64_t> tokens;
  std::span<const std::int32_t> parents;
  std::span<const std::int64_t> sampled;
};

// Appends to `emitted` the tokens that the rows of a walk emit, the bonus token last, up to where the
// text ends, and returns how many these are and why it ends. A path counts up to before a row without
// a usable number; if that is the root, or nothing was walked, it ends with `error`. end_tokens,
// remaining: see text_end.
TextEnd emit(const VerifiedRows& rows, std::span<const std::int32_t> walked,
             std::span<const std::int64_t> end_tokens, std::int64_t remaining,
             std::vector<std::int64_t>& emitted);

}  // namespace trtspec
