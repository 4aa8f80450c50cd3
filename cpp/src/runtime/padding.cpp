#include "trtspec/runtime/padding.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <trtspec/tree_view.hpp>

namespace trtspec {

namespace {

// The rows of one request: its slot, the first of its packed rows, how many there are, where in the
// cache they go, what is committed before them, and their tree mask [n, words], null for none.
struct Group {
  std::int64_t slot;
  std::int64_t first;
  std::int64_t count;
  std::int64_t start;
  std::int64_t context;
  const std::int64_t* tree;
};

std::vector<Group> groups_of(const RowPlaces& rows, std::int64_t length) {
  const auto* starts = rows.query_start.const_data_ptr<std::int32_t>();
  const auto* slots = rows.slot_mapping.const_data_ptr<std::int64_t>();
  const auto* contexts = rows.context_lens.const_data_ptr<std::int32_t>();
  const auto* is_tree = rows.is_tree.const_data_ptr<bool>();
  const auto* masks = rows.tree_mask.const_data_ptr<std::int64_t>();
  const std::int64_t words = rows.tree_mask.size(1);
  std::vector<Group> groups;
  for (std::int64_t request = 0; request < rows.context_lens.size(0); ++request) {
    const std::int64_t first = starts[request], end = starts[request + 1];
    if (first == end) continue;
    if (slots[first] < 0) throw std::logic_error("a row of a slot cache has no slot");
    groups.push_back({slots[first] / length, first, end - first, slots[first] % length,
                      contexts[request], is_tree[request] ? masks + first * words : nullptr});
  }
  return groups;
}

// Marks the cache positions that a row of a group sees, of the first seen.size(); the rule is that
// of paged_tree_attention.
void mark_seen(const Group& group, std::int64_t row, std::int64_t position, std::int64_t window,
               std::int64_t words, std::span<bool> seen) {
  const std::int64_t end = group.context + (group.tree ? 0 : row + 1);
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(position - window + 1, 0) : 0;
  if (begin < end) std::fill(seen.data() + begin, seen.data() + end, true);
  if (!group.tree) return;
  const std::int64_t* mask = group.tree + row * words;
  constexpr std::int64_t kBits = TreeView::kBitsPerWord;
  const std::int64_t width = std::min(words * kBits, std::ssize(seen) - group.context);
  for (std::int64_t bit = 0; bit < width; ++bit) {
    seen[static_cast<std::size_t>(group.context + bit)] = (mask[bit / kBits] >> (bit % kBits)) & 1;
  }
}

// How many positions the masks of a call have.
std::int64_t mask_length(std::span<const Group> groups, std::int64_t num_rows,
                         const SlotShape& shape) {
  std::int64_t end = 0;
  for (const Group& group : groups) end = std::max(end, group.start + num_rows);
  return view_end(shape.view, end, shape.length);
}

PaddedCall make_call(std::span<const Group> groups, const RowPlaces& rows, const SlotShape& shape) {
  const auto* positions = rows.positions.const_data_ptr<std::int64_t>();
  std::int64_t first_slot = groups[0].slot, last_slot = groups[0].slot;
  std::int64_t num_rows = 0, num_packed = 0;
  for (const Group& group : groups) {
    first_slot = std::min(first_slot, group.slot);
    last_slot = std::max(last_slot, group.slot);
    num_rows = std::max(num_rows, group.count);
    num_packed += group.count;
  }
  const std::int64_t num_slots = last_slot - first_slot + 1;
  PaddedCall call{first_slot,
                  num_slots,
                  num_rows,
                  at::empty({num_packed}, at::kLong),
                  at::empty({num_packed}, at::kLong),
                  at::zeros({num_slots, num_rows}, at::kLong),
                  at::full({num_slots}, shape.length - num_rows, at::kLong),
                  {},
                  {}};
  auto* packed = call.packed.mutable_data_ptr<std::int64_t>();
  auto* places = call.places.mutable_data_ptr<std::int64_t>();
  auto* padded = call.positions.mutable_data_ptr<std::int64_t>();
  auto* starts = call.write_indices.mutable_data_ptr<std::int64_t>();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_slots), 0);
  for (const Group& group : groups) {
    const std::int64_t place = group.slot - first_slot;
    std::copy_n(positions + group.first, group.count, padded + place * num_rows);
    starts[place] = group.start;
    counts[static_cast<std::size_t>(place)] = group.count;
    std::iota(packed, packed + group.count, group.first);
    std::iota(places, places + group.count, place * num_rows);
    packed += group.count;
    places += group.count;
    if (group.start == 0) call.begins.push_back(group.slot);
  }
  const std::int64_t length = mask_length(groups, num_rows, shape);
  for (const std::int64_t window : shape.windows) {
    call.masks.push_back(at::zeros({num_slots, 1, num_rows, length}, at::kBool));
    bool* mask = call.masks.back().mutable_data_ptr<bool>();
    for (const Group& group : groups) {
      bool* seen = mask + (group.slot - first_slot) * num_rows * length;
      for (std::int64_t row = 0; row < group.count; ++row) {
        mark_seen(group, row, positions[group.first + row], window, rows.tree_mask.size(1),
                  {seen + row * length, static_cast<std::size_t>(length)});
      }
    }
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      for (std::int64_t row = counts[static_cast<std::size_t>(slot)]; row < num_rows; ++row) {
        mask[(slot * num_rows + row) * length + std::min(starts[slot] + row, length - 1)] = true;
      }
    }
  }
  return call;
}

}  // namespace

RowPlaces RowPlaces::of(std::span<const at::Tensor> tensors) {
  if (tensors.size() != kCount) throw std::logic_error("rows are described by 7 tensors");
  return {tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], tensors[6]};
}

at::Tensor PaddedCall::pad(const at::Tensor& values) const {
  std::vector<std::int64_t> sizes = values.sizes().vec();
  sizes[0] = num_slots * num_rows;
  at::Tensor padded = at::zeros(sizes, values.options());
  padded.index_copy_(0, places, values.index_select(0, packed));
  sizes[0] = num_rows;
  sizes.insert(sizes.begin(), num_slots);
  return padded.view(sizes);
}

std::int64_t view_end(View view, std::int64_t needed, std::int64_t length) {
  if (view == View::kWhole) return length;
  if (view == View::kSteps) {
    return std::min((needed + kMaskStep - 1) / kMaskStep * kMaskStep, length);
  }
  const std::uint64_t power = std::bit_ceil(static_cast<std::uint64_t>(needed));
  return std::min(std::max(static_cast<std::int64_t>(power), kShortestMask), length);
}

std::vector<PaddedCall> padded_calls(const RowPlaces& rows, const SlotShape& shape) {
  std::vector<Group> narrow;
  std::vector<Group> wide;
  for (const Group& group : groups_of(rows, shape.length)) {
    (group.count <= shape.widest ? narrow : wide).push_back(group);
  }
  std::vector<PaddedCall> calls;
  if (!narrow.empty()) calls.push_back(make_call(narrow, rows, shape));
  for (const Group& group : wide) calls.push_back(make_call({&group, 1}, rows, shape));
  return calls;
}

}  // namespace trtspec
