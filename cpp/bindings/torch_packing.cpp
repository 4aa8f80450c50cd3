// Packed rows as torch sees them. Rows that do not fit come to Python as RuntimeError.
#include <trtspec/runtime/packing.hpp>

#include <cstddef>
#include <vector>

#include "drafts_holder.hpp"
#include "tree_holder.hpp"

namespace {

using Ints = std::vector<int64_t>;

struct PackerHolder : torch::CustomClassHolder {
  PackerHolder(int64_t tokens_per_block, int64_t blocks_per_sequence, int64_t mask_words)
      : layout{tokens_per_block, blocks_per_sequence, mask_words} {}

  // Of each request: how many of `tokens` are its own, its committed tokens, its blocks (int32
  // [n]), and whether logits are wanted; and the address of the drafts of all, 0 without. Returns the
  // eight row inputs and the logits rows.
  std::vector<at::Tensor> pack(const Ints& tokens, const Ints& counts, const Ints& contexts,
                               const std::vector<at::Tensor>& blocks,
                               const c10::List<bool>& last_logits, int64_t drafts) {
    const std::size_t size = counts.size();
    TORCH_CHECK(contexts.size() == size && blocks.size() == size && last_logits.size() == size &&
                    (drafts == 0 || drafts_at(drafts).size() == size),
                "packing: one of each is needed for ", size, " requests");
    std::vector<trtspec::RowGroup> groups(size);
    std::size_t first = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto count = std::size_t(counts[i]);
      TORCH_CHECK(first + count <= tokens.size(), "packing: more tokens counted than given");
      TORCH_CHECK(blocks[i].scalar_type() == at::kInt && blocks[i].is_contiguous(),
                  "packing: blocks must be contiguous int32");
      groups[i] = {{tokens.data() + first, count},
                   contexts[i],
                   {blocks[i].const_data_ptr<int32_t>(), std::size_t(blocks[i].numel())},
                   drafts == 0 ? trtspec::TreeView() : drafts_at(drafts)[i],
                   last_logits[i]};
      first += count;
    }
    trtspec::PackedRows packed = trtspec::pack(groups, layout);
    packed.rows.push_back(std::move(packed.logits_rows));
    return std::move(packed.rows);
  }

  trtspec::CacheLayout layout;
};

}  // namespace

void register_packing(torch::Library& library) {
  library.class_<PackerHolder>("RowPacker")
      .def(torch::init<int64_t, int64_t, int64_t>())
      .def("pack", &PackerHolder::pack);
}
