// Packed rows as torch sees them. Rows that do not fit come to Python as RuntimeError.
#include <trtspec/runtime/packing.hpp>

#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "drafts_holder.hpp"
#include "sequence_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

struct PackerHolder : torch::CustomClassHolder {
  PackerHolder(int64_t tokens_per_block, int64_t blocks_per_sequence, int64_t mask_words)
      : layout{tokens_per_block, blocks_per_sequence, mask_words} {}

  // The eight row inputs, the logits rows and the rows' adapters; and the tokens whose K/V is read.
  using Packed = std::tuple<std::vector<at::Tensor>, int64_t>;

  // Of each request: how many of `tokens` are its own, its committed rows and the tokens beside them
  // (RowGroup), its blocks (int32 [n]), and whether logits are wanted; and the address of the drafts
  // of all, 0 without.
  Packed pack(const Ints& tokens, const Ints& counts, const Ints& contexts, const Ints& gaps,
              const std::vector<at::Tensor>& blocks, const c10::List<bool>& last_logits,
              int64_t drafts) {
    const std::size_t size = counts.size();
    TORCH_CHECK(contexts.size() == size && gaps.size() == size && last_logits.size() == size,
                "packing: one of each is needed for ", size, " requests");
    check(size, blocks, drafts);
    std::vector<trtspec::RowGroup> groups(size);
    std::size_t first = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto count = std::size_t(counts[i]);
      TORCH_CHECK(first + count <= tokens.size(), "packing: more tokens counted than given");
      groups[i] = {{tokens.data() + first, count},
                   contexts[i],
                   blocks_of(blocks[i]),
                   draft_of(drafts, i),
                   last_logits[i],
                   gaps[i]};
      first += count;
    }
    return packed(groups);
  }

  // Of the items of a step's plan (see plan_table), with their blocks and drafts.
  Packed pack_plan(const at::Tensor& plan, const std::vector<at::Tensor>& blocks, int64_t drafts) {
    const std::vector<trtspec::ScheduledRows> items = items_of(plan);
    check(items.size(), blocks, drafts);
    std::vector<trtspec::RowGroup> groups;
    for (std::size_t i = 0; i < items.size(); ++i) {
      groups.push_back(trtspec::rows_of(items[i], blocks_of(blocks[i]), draft_of(drafts, i)));
    }
    return packed(groups);
  }

  static void check(std::size_t size, const std::vector<at::Tensor>& blocks, int64_t drafts) {
    TORCH_CHECK(blocks.size() == size && (drafts == 0 || drafts_at(drafts).size() == size),
                "packing: one of each is needed for ", size, " requests");
  }
  static std::span<const int32_t> blocks_of(const at::Tensor& blocks) {
    TORCH_CHECK(blocks.scalar_type() == at::kInt && blocks.is_contiguous(),
                "packing: blocks must be contiguous int32");
    return {blocks.const_data_ptr<int32_t>(), std::size_t(blocks.numel())};
  }
  static trtspec::TreeView draft_of(int64_t drafts, std::size_t request) {
    return drafts == 0 ? trtspec::TreeView() : drafts_at(drafts)[request];
  }
  Packed packed(const std::vector<trtspec::RowGroup>& groups) const {
    trtspec::PackedRows made = trtspec::pack(groups, layout);
    made.rows.push_back(std::move(made.logits_rows));
    made.rows.push_back(std::move(made.adapters));
    int64_t cached = 0;
    for (const trtspec::RowGroup& group : groups) cached += group.context + group.num_rows();
    return {std::move(made.rows), cached};
  }

  trtspec::CacheLayout layout;
};

}  // namespace

void register_packing(torch::Library& library) {
  library.class_<PackerHolder>("RowPacker")
      .def(torch::init<int64_t, int64_t, int64_t>())
      .def("pack", &PackerHolder::pack)
      .def("pack_plan", &PackerHolder::pack_plan);
}
