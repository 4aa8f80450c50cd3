// In what order a call's rows go through the states of requests.
#pragma once
#include <trtspec/state_walk.hpp>

#include <cstddef>
#include <vector>

namespace trtspec {

// A row takes copy `from` of its request's state, takes itself in, and leaves copy `to`.
struct StateStep {
  std::int64_t row;
  std::int64_t from;
  std::int64_t to;
};

// Steps of one request, from copy 0, its committed state. Behind `certain` of them copy 0 is what
// the state becomes.
struct StatePath {
  const StateStep* steps;
  std::int64_t count;
  std::int64_t certain;
  std::int64_t slot;
  bool is_new;  // the state is of zeros
};

struct StatePlan {
  std::vector<StateStep> steps;
  std::vector<StatePath> paths;  // of the requests that are not padding and have rows
  std::int64_t copies = 1;       // of one state, at most
};

// Slots, rows and lengths lie inside, no state is named twice, and every row of a tree behind its
// root follows a row of it; throws std::invalid_argument, whose message begins with the name of
// the op.
void check_walk(const StateWalk& walk, const char* op);

// Rows of padding, and those behind all requests, become zeros.
void clear_padding(const StateWalk& walk, void* rows, std::size_t row_bytes);

// What rows bring that may be rejected, those of a tree behind its root, is copied to their places
// in `kept`, one row behind the other.
void keep_nodes(const StateWalk& walk, const void* rows, std::size_t stride_bytes, void* kept,
                std::size_t row_bytes);

// The row of the call that each one follows; -1: its request's committed tokens, or padding.
std::vector<std::int64_t> parents_of(const StateWalk& walk);

// Trees are gone through depth first, so that there are few copies; a chain needs one.
StatePlan plan_walk(const StateWalk& walk);

}  // namespace trtspec
