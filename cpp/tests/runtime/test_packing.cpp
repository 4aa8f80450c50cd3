// Packed rows, the sampling table and a step's result, against values written by hand.
#include <ATen/ops/full.h>

#include <limits>
#include <span>
#include <trtspec/runtime/commit.hpp>
#include <trtspec/runtime/packing.hpp>
#include <trtspec/runtime/rollout_drafter.hpp>
#include <trtspec/runtime/sampler.hpp>
#include <trtspec/runtime/verification.hpp>
#include <utility>
#include <vector>

#include "check.hpp"
#include "trees.hpp"

namespace {

using trtspec::Request;
using trtspec::RowGroup;
using trtspec::test::Tree;
using Tokens = std::vector<std::int64_t>;
using Blocks = std::vector<std::int32_t>;

template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  const T* data = tensor.const_data_ptr<T>();
  return std::vector<T>(data, data + tensor.numel());
}

void test_pack() {
  const Tokens prompt = {10, 11, 12};
  const Tokens root = {20};
  const Blocks first = {5, 2};
  const Blocks second = {7, 0, 3};
  const Tree tree{{21, 22, 23}, {-1, -1, 0}};
  const RowGroup groups[] = {
      {.tokens = prompt, .context = 1, .blocks = first, .tree = {}, .last_logits = false},
      {.tokens = root,
       .context = 2,
       .blocks = second,
       .tree = tree,
       .last_logits = true,
       .adapter = 5},
      {.tokens = prompt, .context = 0, .blocks = first, .tree = {}, .last_logits = true}};
  const trtspec::PackedRows packed = trtspec::pack(groups, {2, 4, 2});
  CHECK_EQ(packed.rows.size(), 8u);
  CHECK(values<std::int64_t>(packed.rows[0]) == (Tokens{10, 11, 12, 20, 21, 22, 23, 10, 11, 12}));
  CHECK(values<std::int64_t>(packed.rows[1]) == (Tokens{1, 2, 3, 2, 3, 3, 4, 0, 1, 2}));
  CHECK(values<std::int64_t>(packed.rows[2]) == (Tokens{11, 4, 5, 0, 1, 6, 7, 10, 11, 4}));
  CHECK(values<std::int32_t>(packed.rows[3]) == (Blocks{5, 2, -1, -1, 7, 0, 3, -1, 5, 2, -1, -1}));
  CHECK(values<std::int32_t>(packed.rows[4]) == (Blocks{0, 3, 7, 10}));
  CHECK(values<std::int32_t>(packed.rows[5]) == (Blocks{1, 2, 0}));
  CHECK(values<bool>(packed.rows[6]) == (std::vector<bool>{false, true, false}));
  CHECK(values<std::int64_t>(packed.rows[7]) ==
        (Tokens{0, 0, 0, 0, 0, 0, 0b1, 0, 0b11, 0, 0b101, 0, 0b1011, 0, 0, 0, 0, 0, 0, 0}));
  CHECK(values<std::int64_t>(packed.logits_rows) == (Tokens{3, 4, 5, 6, 9}));
  CHECK(values<std::int32_t>(packed.adapters) == (Blocks{-1, -1, -1, 5, 5, 5, 5, -1, -1, -1}));
}

void test_pack_refuses_what_does_not_fit() {
  const Tokens two = {1, 2};
  const Blocks blocks = {0, 1};
  const Tree tree{{3}, {-1}};
  const auto refused = [](RowGroup group, trtspec::CacheLayout layout) {
    CHECK_THROWS(trtspec::pack({&group, 1}, layout));
  };
  refused({.tokens = two, .context = 3, .blocks = blocks}, {2, 4, 1});
  refused({.tokens = two, .context = 0, .blocks = blocks}, {2, 1, 1});
  refused({.tokens = two, .context = 0, .blocks = blocks, .tree = tree}, {2, 4, 1});
  refused({.tokens = {}, .context = 0, .blocks = blocks}, {2, 4, 1});
  const trtspec::PackedRows none = trtspec::pack({}, {2, 4, 1});
  CHECK_EQ(none.rows[0].size(0), 0);
  CHECK_EQ(none.logits_rows.size(0), 0);
}

Request request_with(double temperature) {
  Request request = Request::create(
      1, Tokens{1, 2}, {.temperature = temperature, .top_k = -1, .seed = -5, .stop_token_ids = {}},
      20);
  request.tokens.push_back(3);
  return request;
}

void test_sampling_table() {
  trtspec::SamplingTable table;
  const Request request = request_with(0.5);
  const Tree tree{{4, 5, 6}, {-1, 0, -1}};
  table.add(request, tree);
  table.add(request);
  CHECK_EQ(table.size(), 5);
  const trtspec::SamplingColumns columns = table.columns();
  CHECK_EQ(columns.size(), 7u);
  CHECK(values<float>(columns[0]) == std::vector<float>(5, 0.5f));
  CHECK(values<std::int32_t>(columns[1]) == Blocks(5, 0));
  CHECK(values<float>(columns[2]) == std::vector<float>(5, 1.0f));
  CHECK(values<std::int64_t>(columns[4]) == Tokens(5, -5));
  CHECK(values<std::int64_t>(columns[6]) == (Tokens{1, 2, 3, 2, 1}));
}

void test_verify() {
  trtspec::HostDevice device;
  trtspec::RequestProcessors processors;
  // Greedy: the first one's rows say 4, 5, 6 and 7; the last has one row, and between them one is in
  // the middle of its prompt.
  Request first = request_with(0.0), middle = request_with(0.0), last = request_with(0.0);
  const std::vector<trtspec::ScheduledRows> requests = {{&first, 2, 1, true, 3, true},
                                                        {&middle, 0, 2, false, 0, false},
                                                        {&last, 2, 1, true, 0, true}};
  trtspec::DraftBatch drafts;
  drafts.append(Tree{{9, 4, 5}, {-1, -1, 1}});
  drafts.append();
  drafts.append();
  at::Tensor logits = at::full({5, 10}, 0.0, at::kFloat);
  float* rows = logits.mutable_data_ptr<float>();
  const Tokens said = {4, 6, 5, 7, 3};
  for (std::size_t row = 0; row < said.size(); ++row) {
    rows[row * 10 + std::size_t(said[row])] = 1.0f;
  }
  trtspec::StepResult result = trtspec::verify(requests, drafts, processors, logits, device);
  CHECK(result.start == (Tokens{0, 3, 3, 4}));
  CHECK(result.rows == (Tokens{0, 2, 3, 0}));
  CHECK(result.tokens == (Tokens{4, 5, 7, 3}));
  CHECK(!result.failed(0) && !result.failed(1) && !result.failed(2));
  CHECK(result.num_kept(0, 1) == 3 && result.num_kept(1, 2) == 2 && result.num_kept(2, 1) == 1);
  CHECK(trtspec::kept_rows(requests, result, drafts) == (Tokens{0, 2, 3, 4, 5, 6}));

  rows[10] = std::numeric_limits<float>::quiet_NaN();  // a row beside the path
  CHECK(!trtspec::verify(requests, drafts, processors, logits, device).failed(0));
  rows[20] = std::numeric_limits<float>::quiet_NaN();  // a row on it: what came before stands
  result = trtspec::verify(requests, drafts, processors, logits, device);
  CHECK(!result.failed(0) && result.rows == Tokens(2, 0) && result.tokens == (Tokens{4, 3}));
  rows[0] = std::numeric_limits<float>::quiet_NaN();  // the first
  result = trtspec::verify(requests, drafts, processors, logits, device);
  CHECK(result.failed(0) && result.tokens == Tokens{3} && !result.failed(2));
  CHECK(result.num_kept(0, 1) == 0);
  CHECK(trtspec::kept_rows(requests, result, drafts) == (Tokens{4, 5, 6}));
  const auto chunk = std::span(requests).subspan(1, 1);  // of it nothing is sampled
  result = trtspec::verify(chunk, trtspec::DraftBatch(1), processors, at::Tensor(), device);
  CHECK(result.start == (Tokens{0, 0}) && !result.failed(0) && result.num_kept(0, 2) == 2);

  CHECK_THROWS(trtspec::verify(requests, drafts, processors, logits.narrow(0, 0, 4), device));
  CHECK_THROWS(trtspec::verify(requests, drafts, processors, logits.to(at::kDouble), device));
  CHECK_THROWS(trtspec::verify(requests, drafts, processors, at::Tensor(), device));
}

void test_rollout_shapes() {
  const auto chain = trtspec::RolloutShape::dynamic(1, 5, 6).needs();
  CHECK_EQ(chain.max_nodes, 5);
  CHECK_EQ(chain.max_depth, 5);
  CHECK_EQ(chain.draft_slots, 4);
  CHECK(chain.has_draft_cache && !chain.reads_hidden);
  CHECK_EQ(chain.lookahead, 0);
  CHECK_EQ(chain.limits().useful_nodes(2), 2);
  CHECK_EQ(chain.limits().useful_nodes(0), 0);
  const std::vector<Tokens> choices = {{0}, {1}, {0, 0}, {0, 1}, {1, 0}, {0, 0, 0}};
  const auto fixed = trtspec::RolloutShape::fixed(choices, 1).needs();
  CHECK_EQ(fixed.max_nodes, 6);
  CHECK_EQ(fixed.max_depth, 3);
  CHECK_EQ(fixed.draft_slots, 3);  // [0], [1] and [0, 0] have children
  CHECK(fixed.reads_hidden);
  CHECK_EQ(fixed.lookahead, 1);
  const auto modules = trtspec::RolloutShape{2, 2, 0, 3}.needs();  // cut by one step
  CHECK_EQ(modules.draft_slots, 0);
  CHECK(modules.reads_hidden);
  CHECK_EQ(modules.lookahead, 3);
  CHECK_EQ(fixed.limits().useful_nodes(3), 6);
  CHECK_THROWS((trtspec::DrafterNeeds{.max_nodes = 1, .max_depth = 2}.check()));
  CHECK_THROWS((trtspec::DrafterNeeds{.max_nodes = 1}.check()));
  CHECK_THROWS((trtspec::DrafterNeeds{.draft_slots = 1}.check()));
}

}  // namespace

int main() {
  test_pack();
  test_pack_refuses_what_does_not_fit();
  test_sampling_table();
  test_verify();
  test_rollout_shapes();
  return check_result();
}
