// The acceptance walk: which rows of a verified tree are on the path that the target itself takes.
#pragma once

#include <cstdint>

namespace trtspec {

// `requests` requests own the rows row_start[b] .. row_start[b + 1] - 1; one without rows emits
// nothing. The first row of each is its root; every other row is a node whose parents[row] is the
// index of its parent within the request, smaller than its own. The walk starts at the root; at a row it emits sampled[row] and
// descends to the lowest child whose token equals it, or stops.
//
// accepted_rows is [requests, width], the walked rows as indices within the request, padded with
// -1; width must be at least the largest number of rows of a request. num_emitted[b] counts them.
//
// forced [requests] may be null. Where it is not negative, the walk takes so many nodes whatever
// they carry, fewer in a shallower tree: those above the first row of that depth, and that row. It
// ends at a row whose sampled is negative. A walked row then stands for the token of the next one.
// Returns -1, or the index of the first request that is malformed (a parent does not come before its
// child, or row_start falls); the outputs are then unspecified.
std::int64_t accept(const std::int64_t* sampled, const std::int64_t* tokens,
                    const std::int32_t* parents, const std::int32_t* row_start,
                    std::int64_t requests, std::int64_t width, std::int32_t* accepted_rows,
                    std::int32_t* num_emitted, const std::int32_t* forced = nullptr);

}  // namespace trtspec
