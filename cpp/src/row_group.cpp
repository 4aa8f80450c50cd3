#include "trtspec/row_group.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace trtspec {

void RowWriter::check(const RowGroup& group, const CacheLayout& layout) {
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
}

void RowWriter::add(const RowGroup& group) {
  const std::int64_t size = layout_.tokens_per_block, words = layout_.mask_words;
  const std::int64_t begin = rows_;
  const std::int64_t fed = begin + static_cast<std::int64_t>(group.tokens.size());
  const std::int64_t end = begin + group.num_rows();
  std::copy(group.tokens.begin(), group.tokens.end(), to_.input_ids + begin);
  if (to_.adapters != nullptr) std::fill(to_.adapters + begin, to_.adapters + end, group.adapter);
  std::iota(to_.positions + begin, to_.positions + end, group.context + group.gap);
  for (std::int64_t cache = group.context; rows_ < end; ++rows_, ++cache) {
    to_.slot_mapping[rows_] =
        group.blocks[static_cast<std::size_t>(cache / size)] * size + cache % size;
  }
  std::int32_t* const table = to_.block_tables + requests_ * layout_.blocks_per_sequence;
  std::fill(std::copy(group.blocks.begin(), group.blocks.end(), table),
            table + layout_.blocks_per_sequence, -1);
  to_.is_tree[requests_] = !group.tree.empty();
  if (!group.tree.empty()) {
    std::copy(group.tree.tokens.begin(), group.tree.tokens.end(), to_.input_ids + fed);
    const std::vector<std::int32_t> depths = group.tree.depths();
    for (std::int64_t node = 0; node < end - fed; ++node) {
      to_.positions[fed + node] =
          group.context + group.gap + depths[static_cast<std::size_t>(node)];
    }
    group.tree.write_mask(words, to_.tree_mask + begin * words);
  } else {
    std::fill(to_.tree_mask + begin * words, to_.tree_mask + end * words, 0);
  }
  if (group.last_logits) {
    const std::int64_t wanted = 1 + end - fed;
    std::iota(to_.logits_rows + logits_, to_.logits_rows + logits_ + wanted, fed - 1);
    logits_ += wanted;
  }
  to_.context_lens[requests_] = static_cast<std::int32_t>(group.context);
  to_.query_start[++requests_] = static_cast<std::int32_t>(end);
}

void RowWriter::add_none() {
  const std::int64_t width = layout_.blocks_per_sequence;
  std::fill_n(to_.block_tables + requests_ * width, width, -1);
  to_.is_tree[requests_] = false;
  to_.context_lens[requests_] = 0;
  to_.query_start[++requests_] = static_cast<std::int32_t>(rows_);
}

void RowWriter::pad(std::int64_t rows, std::int64_t logits) {
  const std::int64_t more = rows - rows_, words = layout_.mask_words;
  std::fill_n(to_.input_ids + rows_, more, 0);
  std::fill_n(to_.positions + rows_, more, 0);
  std::fill_n(to_.slot_mapping + rows_, more, -1);
  std::fill_n(to_.tree_mask + rows_ * words, more * words, 0);
  if (to_.adapters != nullptr) std::fill_n(to_.adapters + rows_, more, -1);
  std::fill_n(to_.logits_rows + logits_, logits - logits_, 0);
  rows_ = rows;
  logits_ = logits;
}

}  // namespace trtspec
