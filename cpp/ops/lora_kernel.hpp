#pragma once
#include <trtspec/lora.hpp>

#include "isa.hpp"

namespace trtspec {

constexpr std::int64_t kLoraRows = 48;      // rows of an adapter that are multiplied together
constexpr std::int64_t kLoraOutputs = 256;  // outputs of a task: their sums take 48 KiB of stack
constexpr std::int64_t kLoraInner = 16;     // elements of f(x) A of a task, a vector or several

// Rows of one adapter: those from `first` on of the rows that were gathered.
struct LoraRows {
  std::int64_t adapter;
  std::int64_t first;
  std::int64_t count;
};

// Outputs from `first` on, all of one part.
struct LoraOutputs {
  std::int64_t part;
  std::int64_t first;
  std::int64_t count;
};

struct LoraTasks {
  const LoraRows* rows;  // [num_rows], at least one
  std::int64_t num_rows;
  const LoraOutputs* outputs;  // [num_outputs]
  std::int64_t num_outputs;
  const std::int64_t* places;  // of the gathered rows in x
  const float* x;              // the gathered rows of f(x), x_stride elements apart
  std::int64_t x_stride;
  float* inner;               // of f(x) A, inner_stride elements apart
  std::int64_t inner_stride;  // parts * rank in whole kLoraInner
};

TRTSPEC_DECLARE_KERNEL(void, lora_kernel, (const LoraParams& params, const LoraTasks& tasks))

}  // namespace trtspec
