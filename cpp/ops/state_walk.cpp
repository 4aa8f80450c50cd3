#include "state_walk.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trtspec {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& message) {
  throw std::invalid_argument(std::string(op) + ": " + message);
}

std::string text(std::int64_t value) { return std::to_string(value); }

// The last row before `place` that a mask has, or -1: ancestors stand before their descendants.
std::int64_t last_before(const std::int64_t* mask, std::int64_t words, std::int64_t place) {
  for (std::int64_t word = std::min(words - 1, (place - 1) / 64); word >= 0 && place > 0; --word) {
    auto bits = static_cast<std::uint64_t>(mask[word]);
    const std::int64_t left = place - word * 64;
    if (left < 64) bits &= (std::uint64_t{1} << left) - 1;
    if (bits != 0) return word * 64 + 63 - std::countl_zero(bits);
  }
  return -1;
}

std::int64_t parent_of(const StateWalk& walk, std::int64_t request, std::int64_t row) {
  const std::int64_t first = walk.query_start[request];
  const std::int64_t place = row - first;
  if (!walk.is_tree[request]) return place == 0 ? -1 : row - 1;
  const std::int64_t found =
      last_before(walk.tree_mask + row * walk.mask_words, walk.mask_words, place);
  return found < 0 ? -1 : first + found;
}

// Of a tree: `next` children of a row, in a list that begins with `first`; -1: no more.
struct Family {
  std::int64_t first = -1;
  std::int64_t next = -1;
};

void plan_tree(const std::vector<std::int64_t>& parents, std::int64_t begin, std::int64_t end,
               StatePlan* plan) {
  std::vector<Family> rows(static_cast<std::size_t>(end - begin));
  for (std::int64_t row = end - 1; row > begin; --row) {  // so that lists are in order
    Family& parent = rows[static_cast<std::size_t>(parents[static_cast<std::size_t>(row)] - begin)];
    rows[static_cast<std::size_t>(row - begin)].next = parent.first;
    parent.first = row;
  }
  // A row's last child goes on with its copy; the others take one from it, which is free again when
  // their descendants are done.
  struct Waiting {
    std::int64_t row, from, to;
  };
  std::vector<Waiting> stack{{begin, 0, 0}};
  while (!stack.empty()) {
    const Waiting now = stack.back();
    stack.pop_back();
    plan->steps.push_back({now.row, now.from, now.to});
    plan->copies = std::max(plan->copies, now.to + 1);
    std::vector<std::int64_t> children;
    for (std::int64_t child = rows[static_cast<std::size_t>(now.row - begin)].first; child >= 0;
         child = rows[static_cast<std::size_t>(child - begin)].next) {
      children.push_back(child);
    }
    for (std::size_t i = children.size(); i-- > 0;) {
      const bool is_last = i + 1 == children.size();
      const std::int64_t to = is_last ? now.to : now.to + 1;
      stack.push_back({children[i], now.to, to});
    }
  }
}

}  // namespace

void check_walk(const StateWalk& walk, const char* op) {
  if (walk.requests > 0 && walk.query_start[0] != 0) {
    refuse(op, "query_start must begin with 0, got " + text(walk.query_start[0]));
  }
  std::vector<std::int32_t> used;
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    const std::int64_t begin = walk.query_start[b];
    const std::int64_t end = walk.query_start[b + 1];
    if (end < begin || end > walk.rows) {
      refuse(op, "query_start must rise to at most " + text(walk.rows) + " rows, got " +
                     text(begin) + " then " + text(end) + " for request " + text(b));
    }
    if (walk.state_slots[b] < -1 || walk.state_slots[b] >= walk.num_states) {
      refuse(op, "state " + text(walk.state_slots[b]) + " of request " + text(b) +
                     " is not in [-1, " + text(walk.num_states) + ")");
    }
    if (walk.state_slots[b] < 0) continue;
    used.push_back(walk.state_slots[b]);
    if (!walk.is_tree[b]) continue;
    for (std::int64_t row = begin + 1; row < end; ++row) {
      if (parent_of(walk, b, row) < 0) {
        refuse(op, "row " + text(row) + " follows no row of its tree, that of request " + text(b));
      }
    }
    if (end - begin > 1 && end > walk.kept_rows) {
      refuse(op, "row " + text(end - 1) + " may be rejected, but only " + text(walk.kept_rows) +
                     " rows are kept");
    }
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice != used.end()) refuse(op, "two requests have state " + text(*twice));
}

void clear_padding(const StateWalk& walk, void* rows, std::size_t row_bytes) {
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<char*>(rows) + static_cast<std::size_t>(begin) * row_bytes, 0,
                static_cast<std::size_t>(end - begin) * row_bytes);
  };
  std::int64_t used = 0;
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    used = walk.query_start[b + 1];
    if (walk.state_slots[b] < 0) clear(walk.query_start[b], used);
  }
  clear(used, walk.rows);
}

void keep_nodes(const StateWalk& walk, const void* rows, std::size_t stride_bytes, void* kept,
                std::size_t row_bytes) {
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    if (!walk.is_tree[b] || walk.state_slots[b] < 0) continue;
    for (std::int64_t row = walk.query_start[b] + 1; row < walk.query_start[b + 1]; ++row) {
      const auto place = static_cast<std::size_t>(row);
      std::memcpy(static_cast<char*>(kept) + place * row_bytes,
                  static_cast<const char*>(rows) + place * stride_bytes, row_bytes);
    }
  }
}

std::vector<std::int64_t> parents_of(const StateWalk& walk) {
  std::vector<std::int64_t> parents(static_cast<std::size_t>(walk.rows), -1);
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    for (std::int64_t row = walk.query_start[b]; row < walk.query_start[b + 1]; ++row) {
      parents[static_cast<std::size_t>(row)] = parent_of(walk, b, row);
    }
  }
  return parents;
}

StatePlan plan_walk(const StateWalk& walk) {
  const std::vector<std::int64_t> parents = parents_of(walk);
  StatePlan plan;
  plan.steps.reserve(parents.size());  // paths point into it
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    const std::int64_t begin = walk.query_start[b];
    const std::int64_t end = walk.query_start[b + 1];
    if (walk.state_slots[b] < 0 || begin == end) continue;
    const StateStep* steps = plan.steps.data() + plan.steps.size();
    if (walk.is_tree[b]) {
      plan_tree(parents, begin, end, &plan);
    } else {
      for (std::int64_t row = begin; row < end; ++row) plan.steps.push_back({row, 0, 0});
    }
    plan.paths.push_back({steps, end - begin, walk.is_tree[b] ? 1 : end - begin,
                          walk.state_slots[b], walk.context_lens[b] == 0});
  }
  return plan;
}

}  // namespace trtspec
