// A Sequence as torch passes it from one native call to the next.
#pragma once
#include <torch/custom_class.h>
#include <trtspec/runtime/request.hpp>
#include <trtspec/scheduler.hpp>

#include <cstdint>
#include <utility>
#include <vector>

// Owned by the request of Python that reads its tokens.
struct SequenceHolder : torch::CustomClassHolder {
  explicit SequenceHolder(trtspec::Request made) : request(std::move(made)) {}
  trtspec::Request request;
};

// What Python gives to other calls in place of a sequence; see drafts_holder.hpp.
inline trtspec::Sequence& sequence_at(int64_t address) {
  return *reinterpret_cast<trtspec::Sequence*>(address);
}
inline const trtspec::Request& request_at(int64_t address) {
  return static_cast<const trtspec::Request&>(sequence_at(address));
}

// Items of a step's plan as Python passes them on: int64 [6, B], the fields of ScheduledRows in
// their order, a sequence by its address.
at::Tensor plan_table(const std::vector<trtspec::ScheduledRows>& items);
std::vector<trtspec::ScheduledRows> items_of(const at::Tensor& table);
// As drafters take them.
inline trtspec::StepPlan plan_of(const at::Tensor& table) {
  trtspec::StepPlan plan;
  plan.items = items_of(table);
  return plan;
}
