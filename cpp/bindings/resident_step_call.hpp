// Calls of trtspec::pack_verify, pack_rollout and advance (contract: trtspec/ops/resident_step.py),
// checked for what shapes and dtypes can tell, with the tensors that they return, as the kernels of
// any device take them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <trtspec/resident_step.hpp>

#include <cstddef>
#include <vector>

#include "checks.hpp"

namespace trtspec {

// What the calls share.
class ResidentCall {
 public:
  ResidentCall(const char* op, const at::Tensor& state, const at::Tensor& items)
      : op_(op), state_(state) {
    constexpr auto kStates = int64_t(sizeof(RequestState) / sizeof(int64_t));
    constexpr auto kItems = int64_t(sizeof(StepItem) / sizeof(int64_t));
    matrix("state", state, at::kLong, kStates);
    requests.num_places = state.size(0);
    requests.states = reinterpret_cast<RequestState*>(state.mutable_data_ptr<int64_t>());
    matrix("items", items, at::kLong, kItems);
    num_items = items.size(0);
    this->items = reinterpret_cast<const StepItem*>(items.const_data_ptr<int64_t>());
  }

  void filters(const at::Tensor& filters) {
    at_places("filters", filters, at::kFloat, 3);
    requests.filters = filters.const_data_ptr<float>();
  }
  void ends(const at::Tensor& ends) {
    at_places("ends", ends, at::kLong, -1);
    requests.ends = ends.const_data_ptr<int64_t>();
    requests.num_ends = ends.size(1);
  }
  void tables(const at::Tensor& tables) {
    at_places("tables", tables, at::kInt, -1);
    requests.tables = tables.const_data_ptr<int32_t>();
    requests.table_width = tables.size(1);
  }
  void pairs(const at::Tensor& pairs) {
    at_places("pairs", pairs, at::kLong, -1);
    requests.pairs = pairs.mutable_data_ptr<int64_t>();
    requests.ring = pairs.size(1);
  }

  template <class T>
  const T* vector(const char* name, const at::Tensor& x, at::ScalarType dtype, int64_t size = -1) {
    check(name, x, dtype, 1);
    if (size >= 0) check_shape(op_, name, x, {size});
    return x.const_data_ptr<T>();
  }
  template <class T>
  const T* of_items(const char* name, const at::Tensor& x, at::ScalarType dtype, int64_t columns) {
    check(name, x, dtype, 2);
    check_shape(op_, name, x, {num_items, columns});
    return x.const_data_ptr<T>();
  }
  // The next tensor that the call returns.
  template <class T>
  T* made(at::IntArrayRef shape, at::ScalarType dtype) {
    outputs.push_back(at::empty(shape, state_.options().dtype(dtype)));
    return outputs.back().mutable_data_ptr<T>();
  }
  RowArrays made_rows(int64_t rows, const CacheLayout& layout) {
    return {.input_ids = made<int64_t>({rows}, at::kLong),
            .positions = made<int64_t>({rows}, at::kLong),
            .slot_mapping = made<int64_t>({rows}, at::kLong),
            .block_tables = made<int32_t>({num_items, layout.blocks_per_sequence}, at::kInt),
            .query_start = made<int32_t>({num_items + 1}, at::kInt),
            .context_lens = made<int32_t>({num_items}, at::kInt),
            .is_tree = made<bool>({num_items}, at::kBool),
            .tree_mask = made<int64_t>({rows, layout.mask_words}, at::kLong),
            .logits_rows = nullptr,
            .adapters = nullptr};
  }
  SamplingArrays made_columns(int64_t rows) {
    return {.temperature = made<float>({rows}, at::kFloat),
            .top_k = made<int32_t>({rows}, at::kInt),
            .top_p = made<float>({rows}, at::kFloat),
            .min_p = made<float>({rows}, at::kFloat),
            .seed = made<int64_t>({rows}, at::kLong),
            .sample_index = made<int64_t>({rows}, at::kLong),
            .output_index = made<int64_t>({rows}, at::kLong)};
  }

  ResidentRequests requests = {};
  const StepItem* items;
  int64_t num_items;
  std::vector<at::Tensor> outputs;

 private:
  void check(const char* name, const at::Tensor& x, at::ScalarType dtype, int64_t dim) {
    check_dim(op_, name, x, dim);
    check_dtype(op_, name, x, dtype);
    check_device(op_, name, x, state_);
    TORCH_CHECK(x.is_contiguous(), op_, ": ", name, " must be contiguous");
  }
  void matrix(const char* name, const at::Tensor& x, at::ScalarType dtype, int64_t columns) {
    check(name, x, dtype, 2);
    TORCH_CHECK(columns < 0 || x.size(1) == columns, op_, ": ", name, " must have ", columns,
                " columns, got ", x.size(1));
  }
  void at_places(const char* name, const at::Tensor& x, at::ScalarType dtype, int64_t columns) {
    matrix(name, x, dtype, columns);
    TORCH_CHECK(x.size(0) == requests.num_places, op_, ": ", name, " must have a row for each of ",
                requests.num_places, " places, got ", x.size(0));
  }

  const char* op_;
  at::Tensor state_;
};

struct PackVerifyCall : ResidentCall {
  PackVerifyCall(const at::Tensor& state, const at::Tensor& filters, const at::Tensor& ends,
                 const at::Tensor& tables, const at::Tensor& items, const at::Tensor& chunk,
                 const at::Tensor& draft_tokens, const at::Tensor& draft_parents,
                 const at::Tensor& draft_scores, int64_t behind, int64_t rows, int64_t logits,
                 int64_t tokens_per_block, int64_t mask_words)
      : ResidentCall("pack_verify", state, items) {
    this->filters(filters);
    this->ends(ends);
    this->tables(tables);
    check_dim("pack_verify", "draft_tokens", draft_tokens, 2);
    const int64_t nodes = draft_tokens.size(1);
    params = {.requests = requests,
              .items = this->items,
              .num_items = num_items,
              .chunk = vector<int64_t>("chunk", chunk, at::kLong),
              .draft_tokens = of_items<int64_t>("draft_tokens", draft_tokens, at::kLong, nodes),
              .draft_parents = of_items<int32_t>("draft_parents", draft_parents, at::kInt, nodes),
              .draft_scores = of_items<float>("draft_scores", draft_scores, at::kFloat, nodes),
              .num_nodes = nodes,
              .behind = behind,
              .layout = {tokens_per_block, tables.size(1), mask_words},
              .rows = {},
              .num_rows = rows,
              .num_logits = logits,
              .columns = {},
              .tokens = nullptr,
              .parents = nullptr,
              .row_start = nullptr};
    params.rows = made_rows(rows, params.layout);
    params.rows.logits_rows = made<int64_t>({logits}, at::kLong);
    params.rows.adapters = made<int32_t>({rows}, at::kInt);
    params.columns = made_columns(logits);
    params.tokens = made<int64_t>({logits}, at::kLong);
    params.parents = made<int32_t>({logits}, at::kInt);
    params.row_start = made<int32_t>({num_items + 1}, at::kInt);
  }

  PackVerifyParams params;
};

struct PackRolloutCall : ResidentCall {
  PackRolloutCall(const at::Tensor& state, const at::Tensor& filters, const at::Tensor& tables,
                  const at::Tensor& pairs, const at::Tensor& items, int64_t behind, int64_t rows,
                  int64_t tokens_per_block, int64_t mask_words)
      : ResidentCall("pack_rollout", state, items) {
    this->filters(filters);
    this->tables(tables);
    this->pairs(pairs);
    params = {.requests = requests,
              .items = this->items,
              .num_items = num_items,
              .behind = behind,
              .layout = {tokens_per_block, tables.size(1), mask_words},
              .rows = {},
              .num_rows = rows,
              .last_rows = nullptr,
              .columns = {},
              .ring_rows = nullptr};
    params.rows = made_rows(rows, params.layout);
    params.last_rows = made<int64_t>({num_items}, at::kLong);
    params.columns = made_columns(num_items);
    params.ring_rows = made<int64_t>({rows}, at::kLong);
  }

  PackRolloutParams params;
};

struct AdvanceCall : ResidentCall {
  AdvanceCall(const at::Tensor& state, const at::Tensor& pairs, const at::Tensor& ends,
              const at::Tensor& tables, const at::Tensor& items, const at::Tensor& chunk,
              const at::Tensor& query_start, const at::Tensor& row_start, const at::Tensor& tokens,
              const at::Tensor& parents, const at::Tensor& sampled, const at::Tensor& accepted_rows,
              const at::Tensor& num_emitted, int64_t tokens_per_block, int64_t behind,
              int64_t not_final)
      : ResidentCall("advance", state, items) {
    this->pairs(pairs);
    this->ends(ends);
    this->tables(tables);
    check_dim("advance", "accepted_rows", accepted_rows, 2);
    const int64_t width = accepted_rows.size(1), rows = tokens.numel(), ring = requests.ring;
    params = {.requests = requests,
              .items = this->items,
              .num_items = num_items,
              .chunk = vector<int64_t>("chunk", chunk, at::kLong),
              .query_start = vector<int32_t>("query_start", query_start, at::kInt, num_items + 1),
              .row_start = vector<int32_t>("row_start", row_start, at::kInt, num_items + 1),
              .tokens = vector<int64_t>("tokens", tokens, at::kLong),
              .parents = vector<int32_t>("parents", parents, at::kInt, rows),
              .sampled = vector<int64_t>("sampled", sampled, at::kLong, rows),
              .accepted_rows = of_items<int32_t>("accepted_rows", accepted_rows, at::kInt, width),
              .num_emitted = vector<int32_t>("num_emitted", num_emitted, at::kInt, num_items),
              .width = width,
              .block_size = tokens_per_block,
              .rule = {behind, not_final},
              .result = made<int64_t>({num_items, 4 + 4 * width}, at::kLong),
              .src_slots = made<int64_t>({num_items, width}, at::kLong),
              .dst_slots = made<int64_t>({num_items, width}, at::kLong),
              .kept_rows = made<int64_t>({num_items, ring}, at::kLong),
              .ring_rows = made<int64_t>({num_items, ring}, at::kLong)};
  }

  AdvanceParams params;
};

}  // namespace trtspec
