// One task is a part of the channels of a request: its rows first, then what its tail becomes, which
// they read.
#include "causal_conv_kernel.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
struct Channels {
  const CausalConvParams& p;
  const void* const* inputs;
  std::int64_t first;
  std::int64_t end;

  const Value* input(std::int64_t row, std::int64_t back) const {
    return static_cast<const Value*>(inputs[row * p.width + back]);
  }

  void convolve(std::int64_t row) const {
    const auto* weight = static_cast<const Value*>(p.weight);
    const auto* bias = static_cast<const Value*>(p.bias);
    Value* out = static_cast<Value*>(p.out) + row * p.channels;
    for (std::int64_t c = first; c < end; c += kLanes) {
      VF sum = bias == nullptr ? VF{} : load_first(bias + c, end - c);
      for (std::int64_t j = 0; j < p.width; ++j) {
        const Value* from = input(row, p.width - 1 - j);
        if (from == nullptr) continue;
        sum = fma(load_first(from + c, end - c), load_first(weight + j * p.channels + c, end - c),
                  sum);
      }
      store_first(out + c, sum / (1.0f + exp(-sum)), end - c);
    }
  }

  // In the order of time: an entry is written before the next one is, and reads none before itself.
  void take_in(std::int64_t slot, std::int64_t row) const {
    const std::int64_t entries = p.width - 1;
    Value* tail = static_cast<Value*>(p.tail) + slot * entries * p.channels;
    for (std::int64_t k = 0; k < entries; ++k) {
      copy(input(row, entries - 1 - k), tail + k * p.channels);
    }
  }

  void copy(const Value* from, Value* to) const {
    for (std::int64_t c = first; c < end; ++c) to[c] = from == nullptr ? Value{} : from[c];
  }
};

template <class Value>
void run(const CausalConvParams& p, const void* const* inputs, const std::int64_t* last,
         std::int64_t blocks, int threads) {
  const StateWalk& walk = p.walk;
  parallel_for(walk.requests * blocks, threads, [&](std::int64_t i, int) {
    const std::int64_t b = i / blocks;
    if (last[b] < 0) return;
    const auto border = [&](std::int64_t block) {  // on whole vectors of every instruction set
      return block == blocks ? p.channels : p.channels * block / blocks / 16 * 16;
    };
    const Channels<Value> own{p, inputs, border(i % blocks), border(i % blocks + 1)};
    for (std::int64_t row = walk.query_start[b]; row < walk.query_start[b + 1]; ++row) {
      own.convolve(row);
      if (row > last[b]) {
        own.copy(own.input(row, 0), static_cast<Value*>(p.kept) + row * p.channels);
      }
    }
    own.take_in(walk.state_slots[b], last[b]);
  });
}

}  // namespace

void causal_conv_kernel(const CausalConvParams& params, const void* const* inputs,
                        const std::int64_t* last, std::int64_t blocks, int threads) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, inputs, last, blocks, threads);
    case DType::bf16: return run<bf16>(params, inputs, last, blocks, threads);
    case DType::f16: return run<f16>(params, inputs, last, blocks, threads);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
