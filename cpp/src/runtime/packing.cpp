#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/packing.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>

namespace trtspec {

namespace {

// How many rows there are, and how many of them want logits.
struct Totals {
  std::int64_t rows = 0;
  std::int64_t logits = 0;
};

Totals check(std::span<const RowGroup> groups, const CacheLayout& layout) {
  Totals totals;
  for (const RowGroup& group : groups) {
    const auto held = static_cast<std::int64_t>(group.blocks.size());
    const std::int64_t end = group.context + group.num_rows();
    if (group.tokens.empty() || (!group.tree.empty() && group.tokens.size() > 1)) {
      throw std::logic_error("a group has its tokens, or one root and a tree");
    }
    if (held > layout.blocks_per_sequence || end > held * layout.tokens_per_block) {
      throw std::logic_error("rows up to " + std::to_string(end) + " of a request with " +
                             std::to_string(held) + " blocks of " +
                             std::to_string(layout.tokens_per_block) + "; an engine takes " +
                             std::to_string(layout.blocks_per_sequence));
    }
    totals.rows += group.num_rows();
    if (group.last_logits) totals.logits += 1 + group.tree.size();
  }
  return totals;
}

}  // namespace

RowGroup rows_of(const ScheduledRows& item, std::span<const std::int32_t> blocks, TreeView draft) {
  return {.tokens = std::span(item.sequence->tokens)
                        .subspan(std::size_t(item.start), std::size_t(item.num_rows)),
          .context = item.start,
          .blocks = blocks,
          .tree = draft,
          .last_logits = item.samples,
          .adapter = item.sequence->adapter_slot};
}

PackedRows pack(std::span<const RowGroup> groups, const CacheLayout& layout) {
  const Totals totals = check(groups, layout);
  const auto count = static_cast<std::int64_t>(groups.size());
  const std::int64_t size = layout.tokens_per_block;
  PackedRows packed{
      {host_tensor({totals.rows}, at::kLong), host_tensor({totals.rows}, at::kLong),
       host_tensor({totals.rows}, at::kLong),
       host_tensor({count, layout.blocks_per_sequence}, at::kInt),
       host_tensor({count + 1}, at::kInt), host_tensor({count}, at::kInt),
       host_tensor({count}, at::kBool), host_tensor({totals.rows, layout.mask_words}, at::kLong)},
      host_tensor({totals.logits}, at::kLong), host_tensor({totals.rows}, at::kInt)};
  auto* ids = packed.rows[0].mutable_data_ptr<std::int64_t>();
  auto* positions = packed.rows[1].mutable_data_ptr<std::int64_t>();
  auto* slots = packed.rows[2].mutable_data_ptr<std::int64_t>();
  auto* tables = packed.rows[3].mutable_data_ptr<std::int32_t>();
  auto* starts = packed.rows[4].mutable_data_ptr<std::int32_t>();
  auto* context = packed.rows[5].mutable_data_ptr<std::int32_t>();
  auto* is_tree = packed.rows[6].mutable_data_ptr<bool>();
  auto* masks = packed.rows[7].mutable_data_ptr<std::int64_t>();
  auto* wanted = packed.logits_rows.mutable_data_ptr<std::int64_t>();
  auto* adapters = packed.adapters.mutable_data_ptr<std::int32_t>();

  std::int64_t row = 0;
  starts[0] = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const RowGroup& group = groups[static_cast<std::size_t>(i)];
    const std::int64_t begin = row;
    const std::int64_t fed = begin + static_cast<std::int64_t>(group.tokens.size());
    const std::int64_t end = begin + group.num_rows();
    std::copy(group.tokens.begin(), group.tokens.end(), ids + begin);
    std::fill(adapters + begin, adapters + end, group.adapter);
    std::iota(positions + begin, positions + end, group.context + group.gap);
    for (std::int64_t cache = group.context; row < end; ++row, ++cache) {
      slots[row] = group.blocks[static_cast<std::size_t>(cache / size)] * size + cache % size;
    }
    std::fill(std::copy(group.blocks.begin(), group.blocks.end(),
                        tables + i * layout.blocks_per_sequence),
              tables + (i + 1) * layout.blocks_per_sequence, -1);
    is_tree[i] = !group.tree.empty();
    if (is_tree[i]) {
      std::copy(group.tree.tokens.begin(), group.tree.tokens.end(), ids + fed);
      const std::vector<std::int32_t> depths = group.tree.depths();
      for (std::int64_t node = 0; node < end - fed; ++node) {
        positions[fed + node] =
            group.context + group.gap + depths[static_cast<std::size_t>(node)];
      }
      group.tree.write_mask(layout.mask_words, masks + begin * layout.mask_words);
    } else {
      std::fill(masks + begin * layout.mask_words, masks + end * layout.mask_words, 0);
    }
    if (group.last_logits) {
      std::iota(wanted, wanted + (1 + end - fed), fed - 1);
      wanted += 1 + end - fed;
    }
    starts[i + 1] = static_cast<std::int32_t>(end);
    context[i] = static_cast<std::int32_t>(group.context);
  }
  return packed;
}

}  // namespace trtspec
