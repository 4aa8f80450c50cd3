#include <trtspec/runtime/host_tensor.hpp>
#include <trtspec/runtime/packing.hpp>

#include <cstdint>

namespace trtspec {

RowArrays PackedRows::arrays() const {
  const auto ints = [](const at::Tensor& x) { return x.mutable_data_ptr<std::int32_t>(); };
  const auto longs = [](const at::Tensor& x) { return x.mutable_data_ptr<std::int64_t>(); };
  return {longs(rows[0]),
          longs(rows[1]),
          longs(rows[2]),
          ints(rows[3]),
          ints(rows[4]),
          ints(rows[5]),
          rows[6].mutable_data_ptr<bool>(),
          longs(rows[7]),
          longs(logits_rows),
          ints(adapters)};
}

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
  std::int64_t rows = 0, logits = 0;
  for (const RowGroup& group : groups) {
    RowWriter::check(group, layout);
    rows += group.num_rows();
    if (group.last_logits) logits += 1 + group.tree.size();
  }
  const auto count = static_cast<std::int64_t>(groups.size());
  PackedRows packed{
      {host_tensor({rows}, at::kLong), host_tensor({rows}, at::kLong),
       host_tensor({rows}, at::kLong), host_tensor({count, layout.blocks_per_sequence}, at::kInt),
       host_tensor({count + 1}, at::kInt), host_tensor({count}, at::kInt),
       host_tensor({count}, at::kBool), host_tensor({rows, layout.mask_words}, at::kLong)},
      host_tensor({logits}, at::kLong),
      host_tensor({rows}, at::kInt)};
  RowWriter writer(packed.arrays(), layout);
  for (const RowGroup& group : groups) writer.add(group);
  return packed;
}

}  // namespace trtspec
