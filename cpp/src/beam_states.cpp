#include "trtspec/beam_states.hpp"

#include <cstddef>
#include <utility>

namespace trtspec {

BeamStates::BeamStates(std::span<const std::int32_t> slots, std::int64_t num_slots)
    : last_(slots.begin(), slots.end()), first_scratch_(static_cast<std::int32_t>(num_slots)) {}

BeamStates::Pass BeamStates::next(const BeamRows& beam) {
  constexpr std::int32_t kNone = -1;
  Pass pass{
      .slots = std::vector<std::int32_t>(beam.rows_above.size(), kNone), .from = {}, .to = {}};
  std::vector<bool> goes_on(last_.size(), is_root_);
  for (std::size_t row = 0; row < pass.slots.size(); ++row) {
    const auto above = static_cast<std::size_t>(beam.rows_above[row]);
    if (goes_on[above]) continue;
    goes_on[above] = true;
    pass.slots[row] = last_[above];
  }
  for (std::size_t above = 0; above < last_.size(); ++above) {
    if (!goes_on[above] && last_[above] != kNone) free_.push_back(last_[above]);
  }
  for (std::size_t row = 0; row < pass.slots.size(); ++row) {
    const std::int32_t above = last_[static_cast<std::size_t>(beam.rows_above[row])];
    if (pass.slots[row] != kNone || above == kNone) continue;
    if (free_.empty()) free_.push_back(--first_scratch_);
    pass.slots[row] = free_.back();
    free_.pop_back();
    pass.from.push_back(above);
    pass.to.push_back(pass.slots[row]);
  }
  last_ = pass.slots;
  is_root_ = false;
  return pass;
}

}  // namespace trtspec
