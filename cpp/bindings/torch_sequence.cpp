// Sequence as torch sees it: the tokens of a request, which Python reads from here.
#include <torch/library.h>
#include <trtspec/runtime/host_tensor.hpp>

#include <algorithm>
#include <tuple>

#include "sequence_holder.hpp"

namespace {

using trtspec::Request;
using trtspec::ScheduledRows;
using trtspec::Sequence;
using Ints = std::vector<int64_t>;

// The owner and the address.
std::tuple<c10::intrusive_ptr<SequenceHolder>, int64_t> make(
    int64_t id, Ints prompt, int64_t max_output_tokens, int64_t max_draft_len, double temperature,
    int64_t top_k, double top_p, double min_p, int64_t seed, int64_t sample_index,
    Ints end_tokens) {
  Request request;
  request.id = id;
  request.num_prompt_tokens = int64_t(prompt.size());
  request.tokens = std::move(prompt);
  request.max_output_tokens = max_output_tokens;
  request.max_draft_len = max_draft_len;
  request.options = {.temperature = temperature,
                     .top_k = top_k,
                     .top_p = top_p,
                     .min_p = min_p,
                     .seed = seed,
                     .sample_index = sample_index,
                     .stop_token_ids = {}};
  request.end_tokens = std::move(end_tokens);
  auto owner = c10::make_intrusive<SequenceHolder>(std::move(request));
  const auto address = reinterpret_cast<int64_t>(static_cast<Sequence*>(&owner->request));
  return {std::move(owner), address};
}

int64_t size(int64_t address) { return sequence_at(address).size(); }

// As Python counts places: from the end, if negative.
int64_t token_at(int64_t address, int64_t place) {
  const Sequence& sequence = sequence_at(address);
  const int64_t index = place < 0 ? place + sequence.size() : place;
  TORCH_CHECK_INDEX(index >= 0 && index < sequence.size(), "token ", place, " of a text of ",
                    sequence.size());
  return sequence.tokens[std::size_t(index)];
}

// Those from `begin` up to before `end`, as Python slices.
Ints part(int64_t address, int64_t begin, int64_t end) {
  const Sequence& sequence = sequence_at(address);
  const auto place = [&](int64_t index) {
    const int64_t size = sequence.size();
    return sequence.tokens.begin() + std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
  };
  return place(begin) < place(end) ? Ints(place(begin), place(end)) : Ints();
}

void extend(int64_t address, const Ints& tokens) {
  Sequence& sequence = sequence_at(address);
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
}

void adapt(int64_t address, int64_t adapter, int64_t slot) {
  Sequence& sequence = sequence_at(address);
  sequence.adapter = adapter;
  sequence.adapter_slot = int32_t(slot);
}

}  // namespace

at::Tensor plan_table(const std::vector<ScheduledRows>& items) {
  const auto count = int64_t(items.size());
  at::Tensor table = trtspec::host_tensor({6, count}, at::kLong);
  auto* value = table.mutable_data_ptr<int64_t>();
  for (const ScheduledRows& item : items) {
    value[0] = reinterpret_cast<int64_t>(item.sequence);
    value[count] = item.start;
    value[2 * count] = item.num_rows;
    value[3 * count] = item.is_generation;
    value[4 * count] = item.max_nodes;
    value[5 * count] = item.samples;
    ++value;
  }
  return table;
}

std::vector<ScheduledRows> items_of(const at::Tensor& table) {
  TORCH_CHECK(table.dim() == 2 && table.size(0) == 6 && table.scalar_type() == at::kLong &&
                  table.is_contiguous(),
              "a plan's table is int64 [6, items]");
  const int64_t count = table.size(1);
  const auto* value = table.const_data_ptr<int64_t>();
  std::vector<ScheduledRows> items;
  items.reserve(std::size_t(count));
  for (int64_t i = 0; i < count; ++i, ++value) {
    items.push_back({&sequence_at(value[0]), value[count], value[2 * count], value[3 * count] != 0,
                     value[4 * count], value[5 * count] != 0});
  }
  return items;
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.class_<SequenceHolder>("Sequence")
      .def_static("make", &make)
      .def_static("size", &size)
      .def_static("at", &token_at)
      .def_static("part", &part)
      .def_static("extend", &extend)
      .def_static("adapt", &adapt);
}
