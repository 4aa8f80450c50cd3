#include <trtspec/runtime/commit.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace trtspec {

namespace {

void check_size(std::size_t given, std::size_t expected, const char* of) {
  if (given == expected) return;
  throw std::logic_error(std::to_string(given) + " " + of + " for a plan that has " +
                         std::to_string(expected));
}

// Rows `first + node` of one state, which may be none.
void add(TakenNodes& taken, std::int32_t slot, std::int64_t first,
         std::span<const std::int64_t> nodes) {
  if (nodes.empty()) return;
  for (const std::int64_t node : nodes) taken.rows.push_back(first + node);
  taken.slots.push_back(slot);
  taken.start.push_back(static_cast<std::int32_t>(taken.rows.size()));
}

}  // namespace

void extend(std::span<const ScheduledRows> items, const StepResult& result) {
  check_size(result.size(), items.size(), "results");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto emitted = result.emitted(i);
    std::vector<std::int64_t>& tokens = items[i].sequence->tokens;
    tokens.insert(tokens.end(), emitted.begin(), emitted.end());
  }
}

Moves compaction(std::span<const ScheduledRows> items, const StepResult& result,
                 const KVCache& target) {
  check_size(result.size(), items.size(), "results");
  Moves moves;
  for (std::size_t i = 0; i < items.size(); ++i) {
    // The root's row is at its place; a node is to lie behind the accepted row before it.
    const std::int64_t root = items[i].start + items[i].num_rows - 1;
    for (std::int64_t place = 0; const std::int64_t row : result.accepted_rows(i)) {
      if (row != place) {
        moves.from.push_back(target.slot(items[i].sequence->id, root + row));
        moves.to.push_back(target.slot(items[i].sequence->id, root + place));
      }
      ++place;
    }
  }
  return moves;
}

StateMoves state_moves(std::span<const ScheduledRows> items, std::span<const ScheduledState> states,
                       const StepResult& result, std::span<const std::int64_t> nodes) {
  check_size(result.size(), items.size(), "results");
  check_size(states.size(), items.size(), "states");
  check_size(nodes.size(), items.size(), "numbers of nodes");
  StateMoves moves;
  std::int64_t first = 0;  // row of the call
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [slot, source, snapshot] = states[i];
    const std::int64_t rows = items[i].num_rows, root = first + rows - 1;
    std::span<const std::int64_t> accepted = result.accepted_rows(i);
    if (!accepted.empty()) accepted = accepted.subspan(1);
    const std::int64_t to_border = snapshot.rows - items[i].start - rows;
    const bool passes = snapshot.slot >= 0 && to_border >= 0 && to_border <= std::ssize(accepted);
    const std::size_t split = passes ? static_cast<std::size_t>(to_border) : accepted.size();
    add(moves.before, slot, root, accepted.first(split));
    if (passes) {
      moves.snapshots.from.push_back(slot);
      moves.snapshots.to.push_back(snapshot.slot);
    }
    add(moves.behind, slot, root, accepted.subspan(split));
    first += rows + nodes[i];
  }
  return moves;
}

std::vector<std::int64_t> kept_rows(std::span<const ScheduledRows> items, const StepResult& result,
                                    const DraftBatch& drafts) {
  check_size(result.size(), items.size(), "results");
  check_size(drafts.size(), items.size(), "drafts");
  std::vector<std::int64_t> rows;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t root = first + items[i].num_rows - 1;
    if (!result.failed(i)) {
      for (std::int64_t row = first; row <= root; ++row) rows.push_back(row);
    }
    for (const std::int64_t row : result.accepted_rows(i)) {
      if (row > 0) rows.push_back(root + row);
    }
    first = root + 1 + drafts[i].size();
  }
  return rows;
}

void commit(std::span<const ScheduledRows> items, const StepResult& result,
            std::span<const std::int64_t> drafted, ResourceManager& resources) {
  const std::size_t drafts = resources.num_drafts();
  check_size(result.size(), items.size(), "results");
  check_size(drafted.size(), items.size() * drafts, "lengths of draft KV caches");
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (result.failed(i)) continue;
    const ScheduledRows& item = items[i];
    resources.commit(*item.sequence, item.start + result.num_kept(i, item.num_rows),
                     drafted.subspan(i * drafts, drafts));
  }
}

}  // namespace trtspec
