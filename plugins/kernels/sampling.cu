// sample and draft_candidates. Compiled without contraction: see sampling.cuh.
#include "sampling.cuh"

#include <kernels.hpp>

#include "launch.hpp"
#include "sampling_plan.cuh"

namespace trtspec::cuda {
namespace {

constexpr int kPickWarps = 4;

// -- the chunks' maxima -------------------------------------------------------------------------

// maxima[chunk] of every row; NaN where a logit is. blockIdx.x = row * chunks + chunk, as below.
__global__ void __launch_bounds__(kChunkThreads)
    chunk_maxima(const float* logits, std::int64_t vocab, int chunks, bool aligned, float* maxima) {
  auto& warps = static_shared<float[kChunkWarps]>();
  const float* const row = logits + blockIdx.x / chunks * vocab;
  float highest = -infinity();
  bool numbers = true;
  for (int quad = 0; quad < kQuads; ++quad) {
    float x[4];
    load_quad(row, quad_column(blockIdx.x % chunks, quad), vocab, aligned, x);
    for (int i = 0; i < 4; ++i) {
      numbers = numbers && x[i] == x[i];
      highest = larger(highest, x[i]);
    }
  }
  highest = largest_of_lanes(highest);
  numbers = __ballot_sync(kWarp, numbers) == kWarp;
  if (threadIdx.x % kLanes == 0) {
    warps[threadIdx.x / kLanes] = numbers ? highest : __uint_as_float(0x7fc00000u);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  highest = warps[0];
  for (int warp = 1; warp < kChunkWarps; ++warp) {
    if (warps[warp] != warps[warp] || warps[warp] > highest) highest = warps[warp];
    if (highest != highest) break;
  }
  maxima[blockIdx.x] = highest;
}

// -- sample -------------------------------------------------------------------------------------

// The noise of 32 random bits to 1e-5.
__device__ inline float rough_noise(std::uint32_t word) {
  constexpr float kScale = 1.0f / 4294967296.0f;
  const bool low = word < 0x80000000u;
  const float x = (static_cast<float>(low ? word : ~word) + 0.5f) * kScale;
  return -logf(low ? -log1pf(-x) : -logf(x));
}

// The lowest column of the highest logit, if it lies in this thread's part of the chunk.
__device__ TokenScore greedy_token(const RowPlan& plan, int chunk, bool aligned) {
  TokenScore best{0.0, -1};
  for (int quad = 0; quad < kQuads; ++quad) {
    const std::int64_t column = quad_column(chunk, quad);
    float x[4];
    load_quad(plan.row.logits, column, plan.row.vocab, aligned, x);
    for (int i = 0; i < 4; ++i) {
      if (x[i] == plan.highest && best.column < 0) best = {0.0, column + i};
    }
  }
  return best;
}

// The survivor with the highest logit + noise in this thread's part of the chunk. Floats find the
// few tokens that can be the chunk's best; only these are scored exactly.
__device__ TokenScore noisy_token(const RowPlan& plan, int chunk, bool aligned, float* shared) {
  const SamplingRow& row = plan.row;
  const bool all_weights = row.min_p <= 0.0;
  std::uint32_t words[kQuads][4] = {};
  float rough[kQuads][4];  // score less the highest scaled logit; NaN: not a survivor
  float bound = -infinity();
  for (int quad = 0; quad < kQuads; ++quad) {
    const std::int64_t column = quad_column(chunk, quad);
    float x[4];
    load_quad(row.logits, column, row.vocab, aligned, x);
    bool any = false;
    for (int i = 0; i < 4; ++i) {
      const float distance = below_highest(plan, x[i]);
      const bool possible = distance >= -kNoiseSpan && within(row.cut, x[i], column + i) &&
                            (all_weights || distance > plan.log_min_p - 1e-3f);
      rough[quad][i] = possible ? distance : __uint_as_float(0x7fc00000u);
      any = any || possible;
    }
    if (!any) continue;
    quad_words(row, column, words[quad]);
    for (int i = 0; i < 4; ++i) {
      const bool certain = all_weights || rough[quad][i] > plan.log_min_p + 1e-3f;
      rough[quad][i] += rough_noise(words[quad][i]);
      if (certain && rough[quad][i] > bound) bound = rough[quad][i];
    }
  }
  bound = largest_of_lanes(bound);
  if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = bound;
  __syncthreads();
  for (int warp = 0; warp < kChunkWarps; ++warp) bound = larger(bound, shared[warp]);
  // What the roughness, and the rounding of huge scaled logits, may hide.
  const double size = row.max_scaled < 0.0 ? -row.max_scaled : row.max_scaled;
  bound -= 1e-4f + static_cast<float>(1e-15 * size);
  TokenScore best{0.0, -1};
  for (int quad = 0; quad < kQuads; ++quad) {
    for (int i = 0; i < 4; ++i) {
      const std::int64_t column = quad_column(chunk, quad) + i;
      if (!(rough[quad][i] >= bound) || !survives(row, column)) continue;
      const double score = scaled_logit(row, row.logits[column]) + math::gumbel_of(words[quad][i]);
      if (better({score, column}, best)) best = {score, column};
    }
  }
  return best;
}

__global__ void __launch_bounds__(kChunkThreads)
    sample_chunks(const RowPlan* plans, const float* maxima, int chunks, bool aligned,
                  TokenScore* found) {
  auto& bounds = static_shared<float[kChunkWarps]>();
  auto& warps = static_shared<TokenScore[kChunkWarps]>();
  const RowPlan plan = plans[blockIdx.x / chunks];
  const int chunk = blockIdx.x % chunks;
  const float maximum = maxima[blockIdx.x];
  TokenScore best{0.0, -1};
  if (plan.kind == PlanKind::greedy && maximum == plan.highest) {
    best = best_of_chunk(greedy_token(plan, chunk, aligned), warps);
  } else if (plan.kind == PlanKind::random && maximum >= plan.row.cut.logit &&
             below_highest(plan, maximum) >= -kNoiseSpan) {
    best = best_of_chunk(noisy_token(plan, chunk, aligned, bounds), warps);
  }
  if (threadIdx.x == 0) found[blockIdx.x] = best;
}

// A warp a row.
__global__ void __launch_bounds__(kPickWarps* kLanes)
    pick_tokens(const TokenScore* found, std::int64_t rows, int chunks, std::int64_t* ids) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kPickWarps + threadIdx.x / kLanes;
  if (r >= rows) return;
  TokenScore best{0.0, -1};
  for (int i = threadIdx.x % kLanes; i < chunks; i += kLanes) {
    if (better(found[r * chunks + i], best)) best = found[r * chunks + i];
  }
  best = best_of_lanes(best);
  if (threadIdx.x % kLanes == 0) ids[r] = best.column;
}

// -- draft candidates ---------------------------------------------------------------------------

// found[place] of every chunk: its `count` best survivors, best first, then column -1. sums: of
// exp(scaled logit - highest + noise) over the chunk's survivors.
__global__ void __launch_bounds__(kChunkThreads)
    draft_chunks(const RowPlan* plans, int chunks, bool aligned, int count, TokenScore* found,
                 double* sums) {
  auto& scores = static_shared<double[kChunk]>();  // -inf: not a survivor, or taken
  auto& warps = static_shared<TokenScore[kChunkWarps]>();
  auto& warp_sums = static_shared<double[kChunkWarps]>();
  const RowPlan plan = plans[blockIdx.x / chunks];
  if (plan.kind == PlanKind::invalid) return;
  const SamplingRow& row = plan.row;
  const int chunk = blockIdx.x % chunks;
  const double none = -static_cast<double>(infinity());
  double sum = 0.0;
  for (int quad = 0; quad < kQuads; ++quad) {
    const std::int64_t column = quad_column(chunk, quad);
    float x[4];
    std::uint32_t words[4] = {};
    load_quad(row.logits, column, row.vocab, aligned, x);
    bool any = false;
    for (int i = 0; i < 4; ++i) any = any || within(row.cut, x[i], column + i);
    if (any && plan.kind == PlanKind::random) quad_words(row, column, words);
    for (int i = 0; i < 4; ++i) {
      double score = none;
      if (within(row.cut, x[i], column + i) && survives(row, column + i)) {
        score = scaled_logit(row, x[i]);
        const double weight = math::exp_of(score - row.max_scaled);
        if (plan.kind == PlanKind::random) {
          const double exponential =
              math::exponential_of<double, std::uint64_t>(static_cast<double>(words[i]));
          score = score + -math::log_of(exponential);
          sum += weight / exponential;
        } else {
          sum += weight;
        }
      }
      scores[column + i - std::int64_t{chunk} * kChunk] = score;
    }
  }
  sum = sum_lanes(sum);
  if (threadIdx.x % kLanes == 0) warp_sums[threadIdx.x / kLanes] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0.0;
    for (int warp = 0; warp < kChunkWarps; ++warp) sum += warp_sums[warp];
    sums[blockIdx.x] = sum;
  }
  const auto best_of_thread = [&] {
    TokenScore best{0.0, -1};
    for (int quad = 0; quad < kQuads; ++quad) {
      for (int i = 0; i < 4; ++i) {
        const std::int64_t column = quad_column(chunk, quad) + i;
        const double score = scores[column - std::int64_t{chunk} * kChunk];
        if (score > none && better({score, column}, best)) best = {score, column};
      }
    }
    return best;
  };
  TokenScore mine = best_of_thread();
  for (int place = 0; place < count; ++place) {
    const TokenScore best = best_of_chunk(mine, warps);
    if (threadIdx.x == 0) found[std::int64_t{blockIdx.x} * count + place] = best;
    if (best.column < 0) {
      if (threadIdx.x == 0) {
        for (int i = place + 1; i < count; ++i) {
          found[std::int64_t{blockIdx.x} * count + i] = {0.0, -1};
        }
      }
      break;
    }
    if (best.column == mine.column) {
      scores[best.column - std::int64_t{chunk} * kChunk] = none;
      mine = best_of_thread();
    }
  }
}

// One block a row: the k best of its chunks' lists. A token's place is the number of better ones,
// and lists are sorted.
__global__ void __launch_bounds__(kChunkThreads)
    merge_candidates(const RowPlan* plans, const TokenScore* found, const double* sums, int chunks,
                     int count, int k, std::int64_t* ids, float* logprobs) {
  auto& warps = static_shared<double[kChunkWarps]>();
  const std::int64_t r = blockIdx.x;
  for (int i = threadIdx.x; i < k; i += kChunkThreads) {
    ids[r * k + i] = 0;
    logprobs[r * k + i] = -infinity();
  }
  const RowPlan& plan = plans[r];
  if (plan.kind == PlanKind::invalid) return;
  double total = 0.0;
  for (int i = threadIdx.x; i < chunks; i += kChunkThreads) total += sums[r * chunks + i];
  total = sum_lanes(total);
  if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = total;
  __syncthreads();  // for the defaults above as well
  total = 0.0;
  for (int warp = 0; warp < kChunkWarps; ++warp) total += warps[warp];
  if (!(total > 0.0)) return;  // min_p above 1 leaves no survivor
  const double log_total = math::log_of(total);
  const TokenScore* const lists = found + r * chunks * count;
  for (int i = threadIdx.x; i < chunks * count; i += kChunkThreads) {
    const TokenScore mine = lists[i];
    if (mine.column < 0) continue;
    int place = 0;
    for (int list = 0; list < chunks && place < k; ++list) {
      int low = 0;
      int high = count;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (better(lists[list * count + middle], mine)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      place += low;
    }
    if (place >= k) continue;
    const std::int64_t* const map = plan.row.token_map;
    ids[r * k + place] = map != nullptr ? map[mine.column] : mine.column;
    logprobs[r * k + place] = static_cast<float>(mine.score - plan.row.max_scaled - log_total);
  }
}

// -- launching ----------------------------------------------------------------------------------

struct Workspace {
  std::size_t maxima, plans, found, sums, bytes;  // where each begins; all of them

  Workspace(std::int64_t rows, std::int64_t chunks, std::int64_t count) {
    std::size_t at = 0;
    const auto take = [&](std::int64_t items, std::size_t size) {
      const std::size_t from = at;
      at += (static_cast<std::size_t>(items) * size + 255) / 256 * 256;
      return from;
    };
    maxima = take(rows * chunks, sizeof(float));
    plans = take(rows, sizeof(RowPlan));
    found = take(rows * chunks * count, sizeof(TokenScore));
    sums = take(rows * chunks, sizeof(double));
    bytes = at;
  }
};

std::int64_t chunks_of(std::int64_t vocab) { return divide_up(vocab, kChunk); }

std::int64_t listed_of_chunk(std::int64_t k) { return smaller<std::int64_t>(k, kChunk); }

bool fits(std::int64_t rows, std::int64_t vocab) {
  return vocab >= 1 && vocab < (std::int64_t{1} << 22) && rows * chunks_of(vocab) < (1ll << 31);
}

bool aligned_rows(const float* logits, std::int64_t vocab) {
  return vocab % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
}

// The maxima of the chunks and the plans of the rows, into the workspace.
cudaError_t make_plans(const float* logits, std::int64_t rows, std::int64_t vocab,
                       const SamplingRows& params, const std::int64_t* token_map, float* maxima,
                       RowPlan* plans, cudaStream_t stream) {
  const int chunks = static_cast<int>(chunks_of(vocab));
  const cudaError_t error =
      launch(chunk_maxima, static_cast<unsigned>(rows * chunks), kChunkThreads, 0, stream, logits,
             vocab, chunks, aligned_rows(logits, vocab), maxima);
  if (error != cudaSuccess) return error;
  return launch(plan_rows, static_cast<unsigned>(rows), kPlanThreads, sizeof(PlanMemory), stream,
                logits, vocab, params, token_map, maxima, chunks, plans);
}

}  // namespace

std::size_t sample_workspace(std::int64_t rows, std::int64_t vocab) {
  return Workspace(rows, chunks_of(vocab), 1).bytes;
}

cudaError_t sample(const float* logits, std::int64_t rows, std::int64_t vocab,
                   const SamplingRows& params, std::int64_t* ids, void* workspace,
                   cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  if (!fits(rows, vocab)) return cudaErrorInvalidValue;
  const std::int64_t chunks = chunks_of(vocab);
  const Workspace places(rows, chunks, 1);
  char* const memory = static_cast<char*>(workspace);
  auto* const maxima = reinterpret_cast<float*>(memory + places.maxima);
  auto* const plans = reinterpret_cast<RowPlan*>(memory + places.plans);
  auto* const found = reinterpret_cast<TokenScore*>(memory + places.found);
  cudaError_t error = make_plans(logits, rows, vocab, params, nullptr, maxima, plans, stream);
  if (error != cudaSuccess) return error;
  error = launch(sample_chunks, static_cast<unsigned>(rows * chunks), kChunkThreads, 0, stream,
                 plans, maxima, static_cast<int>(chunks), aligned_rows(logits, vocab), found);
  if (error != cudaSuccess) return error;
  return launch(pick_tokens, static_cast<unsigned>(divide_up(rows, kPickWarps)),
                kPickWarps * kLanes, 0, stream, found, rows, static_cast<int>(chunks), ids);
}

std::size_t draft_candidates_workspace(std::int64_t rows, std::int64_t vocab, std::int64_t k) {
  return Workspace(rows, chunks_of(vocab), listed_of_chunk(k)).bytes;
}

cudaError_t draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                             const SamplingRows& params, const std::int64_t* token_map,
                             std::int64_t k, std::int64_t* ids, float* logprobs, void* workspace,
                             cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  if (!fits(rows, vocab) || k < 1 || k > kMaxCandidates) return cudaErrorInvalidValue;
  const std::int64_t chunks = chunks_of(vocab);
  const std::int64_t count = listed_of_chunk(k);
  const Workspace places(rows, chunks, count);
  char* const memory = static_cast<char*>(workspace);
  auto* const plans = reinterpret_cast<RowPlan*>(memory + places.plans);
  auto* const found = reinterpret_cast<TokenScore*>(memory + places.found);
  auto* const sums = reinterpret_cast<double*>(memory + places.sums);
  cudaError_t error = make_plans(logits, rows, vocab, params, token_map,
                                 reinterpret_cast<float*>(memory + places.maxima), plans, stream);
  if (error != cudaSuccess) return error;
  error = launch(draft_chunks, static_cast<unsigned>(rows * chunks), kChunkThreads, 0, stream,
                 plans, static_cast<int>(chunks), aligned_rows(logits, vocab),
                 static_cast<int>(count), found, sums);
  if (error != cudaSuccess) return error;
  return launch(merge_candidates, static_cast<unsigned>(rows), kChunkThreads, 0, stream, plans,
                found, sums, static_cast<int>(chunks), static_cast<int>(count), static_cast<int>(k),
                ids, logprobs);
}

}  // namespace trtspec::cuda
