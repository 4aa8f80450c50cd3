// Padding: from packed rows and their bookkeeping to the padded calls of a slot cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trtspec {

// Where T packed rows of B requests stand, and how they attend: see PackedRows of packing.hpp for
// each tensor.
struct RowPlaces {
  at::Tensor positions;
  at::Tensor slot_mapping;
  at::Tensor block_tables;
  at::Tensor query_start;
  at::Tensor context_lens;
  at::Tensor is_tree;
  at::Tensor tree_mask;

  static constexpr std::size_t kCount = 7;
  // From as many tensors, in this order.
  static RowPlaces of(std::span<const at::Tensor> tensors);
};

// One call of a graph over num_slots sequences from first_slot on, S = num_rows rows each.
struct PaddedCall {
  std::int64_t first_slot;
  std::int64_t num_slots;
  std::int64_t num_rows;
  at::Tensor packed;                 // the packed rows that it serves [n] i64
  at::Tensor places;                 // where each stands among the num_slots * S rows [n] i64
  at::Tensor positions;              // [num_slots, S] i64
  at::Tensor write_indices;          // [num_slots] i64: where a sequence's first row goes
  std::vector<at::Tensor> masks;     // one of each window, [num_slots, 1, S, L'] bool
  std::vector<std::int64_t> begins;  // slots whose sequence begins with this call

  // A value of each packed row [T, ...] as [num_slots, S, ...], zero elsewhere.
  at::Tensor pad(const at::Tensor& values) const;
};

// How many positions of a slot a call's masks have, and with them what it attends to: all, or up to
// behind the last one that a row can see, rounded up to steps of kMaskStep or to powers of two from
// kShortestMask on (see View of trtspec/backends/slots/padding.py).
enum class View { kWhole, kSteps, kPowers };

// Where a view of `needed` positions ends, in slots of that length.
std::int64_t view_end(View view, std::int64_t needed, std::int64_t length);

// The shape of a graph over a slot cache: positions of a slot, most rows of a request that shares
// a call, the sliding windows of its layers (see DecoderShape), and how its masks are cut.
struct SlotShape {
  std::int64_t length;
  std::int64_t widest;
  std::vector<std::int64_t> windows;
  View view = View::kWhole;
};

// The calls that feed rows to caches.
//
// A request's slot_mapping names its slot, and its rows lie one behind the other in the cache.
// Requests of up to `widest` rows share a call, over all slots from the lowest to the highest; one
// of more rows, a prefill chunk, has its own. A slot in between that has no rows gets padding,
// which is written to the last positions of its cache: no sequence may reach those, the last
// `widest`. Padding behind a request's rows is written behind them, where nothing is committed. A
// row of padding sees itself, so that it stays finite: NaN in a cache would spread, as masked
// positions are multiplied by zero. Masks that are cut end where no row of a request looks or is
// padded to; a row of padding behind that sees the last position.
std::vector<PaddedCall> padded_calls(const RowPlaces& rows, const SlotShape& shape);

// Few lengths of masks, for what is kept of each.
constexpr std::int64_t kMaskStep = 64;
constexpr std::int64_t kShortestMask = 256;

}  // namespace trtspec
