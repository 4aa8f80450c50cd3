// The plan of a row: is it valid, and where do top_k and top_p cut it.
#pragma once

#include "sampling.cuh"

namespace trtspec::cuda {

inline constexpr int kPlanThreads = 1024;
inline constexpr int kBins = 2048;
inline constexpr int kListed = 2048;  // tokens that a cut is looked for among, at most

struct PlanMemory {
  std::int64_t histogram[kBins];
  std::uint64_t keys[kListed];
  std::int64_t weights[kListed];
  std::int64_t warps[kPlanThreads / kLanes];
  std::int64_t before;  // weight of the bins before `bin`
  std::uint64_t key;
  int bin;
  int listed;
};

// The sum of the threads' values, on all of them.
__device__ inline std::int64_t sum_of_block(std::int64_t value, PlanMemory& memory) {
  value = sum_lanes(value);
  __syncthreads();
  if (threadIdx.x % kLanes == 0) memory.warps[threadIdx.x / kLanes] = value;
  __syncthreads();
  std::int64_t sum = 0;
  for (int warp = 0; warp < kPlanThreads / kLanes; ++warp) sum += memory.warps[warp];
  return sum;
}

// A key orders tokens: the highest logit first, among equal ones the lowest column.
__device__ __forceinline__ std::uint64_t key_of(float logit, std::int64_t column) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const std::uint32_t order = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return (std::uint64_t{~order} << 32) | static_cast<std::uint32_t>(column);
}

__device__ __forceinline__ Cut cut_at(std::uint64_t key) {
  const std::uint32_t order = ~static_cast<std::uint32_t>(key >> 32);
  return {__uint_as_float(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu)),
          static_cast<std::int64_t>(key & 0xffffffffu)};
}

// The bin of a token `distance` >= 0 below the highest: 128 bins an octave between 2^-8 and 2^8, so
// that the tokens that matter spread over many. Never falls as the distance grows.
__device__ __forceinline__ int bin_of(float distance) {
  constexpr float kFirst = 1.0f / 256.0f;
  if (distance < kFirst) return 0;  // -0 too
  const std::uint32_t steps = __float_as_uint(distance) - __float_as_uint(kFirst);
  return static_cast<int>(smaller<std::uint32_t>(1 + (steps >> 16), kBins - 1));
}

// Every token counts 1.
struct CountWeight {
  const RowPlan& plan;
  std::int64_t top_k;
  __device__ float distance(float logit) const { return plan.highest - logit; }
  __device__ std::int64_t operator()(float) const { return 1; }
  __device__ std::int64_t wanted(std::int64_t) const { return top_k; }
};

// Every token counts its probability mass (cpp/ops/sampling_kernel.hpp).
struct MassWeight {
  const RowPlan& plan;
  double top_p;
  __device__ float distance(float logit) const { return (plan.highest - logit) / plan.temperature; }
  __device__ std::int64_t operator()(float logit) const {
    if (distance(logit) > 29.3f) return 0;  // less than half a unit
    const double weight = token_weight(plan.row, logit);
    return static_cast<std::int64_t>(mass_of<double, std::uint64_t>(weight));
  }
  __device__ std::int64_t wanted(std::int64_t total) const {
    const auto share = static_cast<std::int64_t>(ceil(top_p * static_cast<double>(total)));
    return larger<std::int64_t>(share, 1);
  }
};

// visit(column, logit) for the tokens within the cut.
template <class Visit>
__device__ void for_tokens(const RowPlan& plan, const Visit& visit) {
  for (std::int64_t column = threadIdx.x; column < plan.row.vocab; column += kPlanThreads) {
    const float logit = plan.row.logits[column];
    if (within(plan.row.cut, logit, column)) visit(column, logit);
  }
}

// Finds the bin in which the weight, summed over tokens in their order, reaches what is wanted:
// memory.bin, or -1 if all of it does not. Returns what is wanted.
template <class Weight>
__device__ std::int64_t find_bin(const RowPlan& plan, const Weight& weight, PlanMemory& memory) {
  for (int i = threadIdx.x; i < kBins; i += kPlanThreads) memory.histogram[i] = 0;
  if (threadIdx.x == 0) memory.bin = -1;
  __syncthreads();
  std::int64_t rest = 0;  // of the last bin, which may hold almost all tokens
  for_tokens(plan, [&](std::int64_t, float logit) {
    const std::int64_t mass = weight(logit);
    const int bin = bin_of(weight.distance(logit));
    if (bin == kBins - 1) {
      rest += mass;
    } else if (mass != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&memory.histogram[bin]),
                static_cast<unsigned long long>(mass));
    }
  });
  rest = sum_of_block(rest, memory);
  if (threadIdx.x == kPlanThreads - 1) memory.histogram[kBins - 1] = rest;  // its own, as follows
  // Each thread looks at neighbouring bins; before them lie those of the threads before it.
  constexpr int kOwn = kBins / kPlanThreads;
  const int first = threadIdx.x * kOwn;
  std::int64_t own = 0;
  for (int i = 0; i < kOwn; ++i) own += memory.histogram[first + i];
  std::int64_t upto = own;
  const int lane = threadIdx.x % kLanes;
  for (int delta = 1; delta < kLanes; delta *= 2) {
    const std::int64_t other = __shfl_up_sync(kWarp, upto, delta);
    if (lane >= delta) upto += other;
  }
  const std::int64_t total = sum_of_block(own, memory);  // leaves the warps' sums
  std::int64_t before = upto - own;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kLanes; ++warp) {
    before += memory.warps[warp];
  }
  const std::int64_t wanted = weight.wanted(total);
  for (int i = 0; i < kOwn; ++i) {
    const std::int64_t after = before + memory.histogram[first + i];
    if (before < wanted && wanted <= after) {
      memory.bin = first + i;
      memory.before = before;
    }
    before = after;
  }
  __syncthreads();
  return wanted;
}

// Narrows the cut to the shortest prefix, in the order of tokens, whose weight reaches what is
// wanted; leaves it if all tokens do not. All threads of the block call it.
template <class Weight>
__device__ void narrow(RowPlan& plan, const Weight& weight, PlanMemory& memory) {
  const std::int64_t wanted = find_bin(plan, weight, memory);
  const int bin = memory.bin;
  if (bin < 0) return;
  const std::int64_t missing = wanted - memory.before;
  if (threadIdx.x == 0) memory.listed = 0;
  __syncthreads();
  for_tokens(plan, [&](std::int64_t column, float logit) {
    if (bin_of(weight.distance(logit)) != bin) return;
    const std::int64_t mass = weight(logit);
    if (mass == 0) return;
    const int place = atomicAdd(&memory.listed, 1);
    if (place >= kListed) return;
    memory.keys[place] = key_of(logit, column);
    memory.weights[place] = mass;
  });
  __syncthreads();
  const int listed = memory.listed;
  if (listed <= kListed) {
    for (int i = threadIdx.x; i < listed; i += kPlanThreads) {
      std::int64_t before = 0;
      for (int j = 0; j < listed; ++j) {
        before += memory.keys[j] < memory.keys[i] ? memory.weights[j] : 0;
      }
      if (before < missing && missing <= before + memory.weights[i]) memory.key = memory.keys[i];
    }
    __syncthreads();
    plan.row.cut = cut_at(memory.key);
  } else {
    // Too many to list (many equal logits): the least key whose prefix is heavy enough, by halving.
    std::uint64_t low = 0;
    std::uint64_t high = ~std::uint64_t{0};
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      std::int64_t upto = 0;
      for_tokens(plan, [&](std::int64_t column, float logit) {
        if (bin_of(weight.distance(logit)) == bin && key_of(logit, column) <= middle) {
          upto += weight(logit);
        }
      });
      if (sum_of_block(upto, memory) >= missing) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    plan.row.cut = cut_at(low);
  }
}

// The plan of one row from the maxima of its chunks, NaN where a chunk holds one.
__global__ void __launch_bounds__(kPlanThreads)
    plan_rows(const float* logits, std::int64_t vocab, const __grid_constant__ SamplingRows params,
              const std::int64_t* token_map, const float* maxima, int chunks, RowPlan* plans) {
  PlanMemory& memory = *reinterpret_cast<PlanMemory*>(dynamic_shared());
  const std::int64_t r = blockIdx.x;
  float highest = -infinity();
  bool numbers = true;
  for (int i = 0; i < chunks; ++i) {
    const float maximum = maxima[r * chunks + i];
    numbers = numbers && maximum == maximum;
    highest = larger(highest, maximum);
  }
  const float temperature = params.temperature[r];
  const bool greedy = temperature == 0.0f;
  RowPlan plan{};
  plan.kind = greedy ? PlanKind::greedy : PlanKind::random;
  if (!numbers || !(highest < infinity()) || highest == -infinity() || !(temperature >= 0.0f) ||
      temperature == infinity()) {
    plan.kind = PlanKind::invalid;
  }
  plan.highest = highest;
  plan.temperature = greedy ? 1.0f : temperature;
  plan.row.logits = logits + r * vocab;
  plan.row.vocab = vocab;
  plan.row.temperature = static_cast<double>(plan.temperature);
  plan.row.max_scaled = static_cast<double>(highest) / plan.row.temperature;
  plan.row.min_p = greedy ? 0.0 : static_cast<double>(params.min_p[r]);
  plan.row.cut = {-3.402823466e+38f, vocab - 1};  // all finite logits
  plan.row.noise = noise_stream(params.seed[r], params.sample_index[r], params.output_index[r]);
  plan.row.token_map = token_map;
  plan.log_min_p = logf(static_cast<float>(plan.row.min_p));
  if (plan.kind == PlanKind::random) {
    const std::int64_t top_k = params.top_k[r];
    const float top_p = params.top_p[r];
    if (top_k > 0 && top_k < vocab) narrow(plan, CountWeight{plan, top_k}, memory);
    if (top_p < 1.0f) narrow(plan, MassWeight{plan, static_cast<double>(top_p)}, memory);
  }
  if (threadIdx.x == 0) plans[r] = plan;
}

}  // namespace trtspec::cuda
