#include <trtspec/causal_conv.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "causal_conv_kernel.hpp"
#include "parallel.hpp"
#include "state_walk.hpp"

namespace trtspec {
namespace {

constexpr const char* kOp = "causal_conv";
constexpr double kGrain = 1 << 18;       // multiply-adds that are worth a thread
constexpr std::int64_t kChannels = 256;  // of a part, at least

// Of each row what it reads; see causal_conv_kernel.
std::vector<const void*> inputs_of(const CausalConvParams& p) {
  const StateWalk& walk = p.walk;
  const std::size_t element = size_of(p.dtype);
  const auto width = static_cast<std::size_t>(p.width);
  const auto* x = static_cast<const char*>(p.x);
  const auto* tails = static_cast<const char*>(p.tail);
  const std::vector<std::int64_t> parents = parents_of(walk);
  std::vector<const void*> inputs(static_cast<std::size_t>(walk.rows) * width, nullptr);
  for (std::int64_t b = 0; b < walk.requests; ++b) {
    if (walk.state_slots[b] < 0) continue;
    for (std::int64_t t = walk.query_start[b]; t < walk.query_start[b + 1]; ++t) {
      const void** own = inputs.data() + static_cast<std::size_t>(t) * width;
      own[0] = x + static_cast<std::size_t>(t * p.x_row_stride) * element;
      const std::int64_t parent = parents[static_cast<std::size_t>(t)];
      for (std::size_t back = 1; back < width; ++back) {
        if (parent >= 0) {
          own[back] = inputs[static_cast<std::size_t>(parent) * width + back - 1];
        } else if (walk.context_lens[b] > 0) {
          const std::int64_t entry =
              walk.state_slots[b] * (p.width - 1) + p.width - 1 - static_cast<std::int64_t>(back);
          own[back] = tails + static_cast<std::size_t>(entry * p.channels) * element;
        }
      }
    }
  }
  return inputs;
}

}  // namespace

void causal_conv(const CausalConvParams& p) {
  if (p.walk.rows <= 0) return;
  check_walk(p.walk, kOp);
  const std::vector<const void*> inputs = inputs_of(p);
  std::vector<std::int64_t> last;
  for (std::int64_t b = 0; b < p.walk.requests; ++b) {
    const std::int64_t begin = p.walk.query_start[b];
    const std::int64_t end = p.walk.query_start[b + 1];
    const bool has_rows = p.walk.state_slots[b] >= 0 && end > begin;
    last.push_back(!has_rows ? -1 : p.walk.is_tree[b] ? begin : end - 1);
  }
  const std::size_t row_bytes = static_cast<std::size_t>(p.channels) * size_of(p.dtype);
  for (std::int64_t t = 0; t < p.walk.rows; ++t) {
    if (inputs[static_cast<std::size_t>(t * p.width)] == nullptr) {
      std::memset(static_cast<char*>(p.out) + static_cast<std::size_t>(t) * row_bytes, 0,
                  row_bytes);
    }
  }
  const std::int64_t blocks = std::max<std::int64_t>(1, p.channels / kChannels);
  const int threads =
      base::threads_for(double(p.walk.rows) * double(p.channels) * double(p.width), kGrain);
  TRTSPEC_DISPATCH(causal_conv_kernel, p, inputs.data(), last.data(), blocks, threads);
}

}  // namespace trtspec
