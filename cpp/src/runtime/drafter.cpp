#include <trtspec/error.hpp>
#include <trtspec/runtime/drafter.hpp>

#include <string>

namespace trtspec {

void DrafterNeeds::check() const {
  const auto text = [](const char* name, std::int64_t value) {
    return std::string(name) + "=" + std::to_string(value);
  };
  for (const auto& [name, value] :
       {std::pair{"max_nodes", max_nodes}, std::pair{"max_depth", max_depth},
        std::pair{"draft_slots", draft_slots}}) {
    if (value < 0) throw Error(text(name, value) + " of a drafter must be 0 or more");
  }
  if ((max_nodes == 0) != (max_depth == 0)) {
    throw Error("a drafter's " + text("max_nodes", max_nodes) + " and " +
                text("max_depth", max_depth) + " must be both 0 (no drafts) or both positive");
  }
  if (max_depth > max_nodes) {
    throw Error(text("max_depth", max_depth) + " needs at least as many nodes, max_nodes is " +
                std::to_string(max_nodes));
  }
  if (draft_slots > 0 && !has_draft_cache) {
    throw Error(text("draft_slots", draft_slots) +
                " are rows of a draft cache, but has_draft_cache is false");
  }
}

DraftLimits DrafterNeeds::limits() const {
  DraftLimits limits{max_nodes, max_depth, {}};
  if (has_draft_cache) limits.slots = {draft_slots};
  return limits;
}

}  // namespace trtspec
