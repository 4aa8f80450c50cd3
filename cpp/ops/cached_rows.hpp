// Checks of packed rows over a cache, which every op over a paged cache makes before it writes.
#pragma once
#include <trtspec/cached_rows.hpp>

namespace trtspec {

// Slots, rows of requests and lengths lie inside; throws std::invalid_argument, whose message
// begins with the name of the op.
void check_rows(const CachedRows& rows, const char* op);

// Every position that a row of request b sees lies in a block that exists: positions before
// context_lens[b] (plus its rows, if they are causal) and those of its rows' masks. Throws as
// check_rows, which comes first.
void check_blocks(const CachedRows& rows, const char* op, std::int64_t b);

}  // namespace trtspec
