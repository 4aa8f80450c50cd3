// Packed rows: the tokens of many requests as the input tensors of one engine call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/scheduler.hpp>
#include <vector>

namespace trtspec {

struct PackedRows {
  // input_ids [T] i64, positions [T] i64, slot_mapping [T] i64, block_tables [B, M] i32 (-1 behind
  // a request's blocks), query_start [B + 1] i32, context_lens [B] i32, is_tree [B] bool,
  // tree_mask [T, W] i64.
  std::vector<at::Tensor> rows;
  at::Tensor logits_rows;  // [R] i64, in order
  at::Tensor adapters;     // [T] i32, of each row

  // Where they are written.
  RowArrays arrays() const;
};

// The rows of one item of a step's plan, and its draft behind them. blocks: in the target's cache.
RowGroup rows_of(const ScheduledRows& item, std::span<const std::int32_t> blocks, TreeView draft);

// Throws std::logic_error for a group whose rows do not fit its blocks or the layout.
PackedRows pack(std::span<const RowGroup> groups, const CacheLayout& layout);

}  // namespace trtspec
