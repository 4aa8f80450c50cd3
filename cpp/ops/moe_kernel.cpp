// What stands between and behind the products of a mixture of experts.
#include "moe_kernel.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr double kGrain = 1 << 13;  // elements worth a thread: a few microseconds

TRTSPEC_INLINE VF activate(Activation kind, VF g) {
  switch (kind) {
    case Activation::silu: return g / (1.0f + exp(-g));
    case Activation::quick_gelu: return g / (1.0f + exp(-1.702f * g));
    // (1 + tanh(s)) / 2 is the sigmoid of 2 s.
    case Activation::gelu_tanh:
      return g / (1.0f + exp(-1.5957691216057308f * (g + 0.044715f * g * g * g)));
    case Activation::relu: return max(g, VF{});
    case Activation::relu2: return max(g, VF{}) * max(g, VF{});
  }
  return g;
}

template <class Value>
void activate_rows(const MoeParams& params, const Value* in, std::int64_t rows, Value* out) {
  const std::int64_t inner = params.inner;
  const VF limit = splat(params.limit);
  parallel_for(rows, threads_for(double(rows) * double(inner), kGrain), [&](std::int64_t r, int) {
    const Value* row = in + r * 2 * inner;
    for (std::int64_t k = 0; k < inner; k += kLanes) {
      VF g = load_first(row + k, inner - k), u = load_first(row + inner + k, inner - k);
      if (params.limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
      }
      const VF gated = activate(params.activation, g) * (u + params.offset);
      store_first(out + r * inner + k, gated, inner - k);
    }
  });
}

template <class Value>
void finish_rows(const MoeParams& params, const float* sums) {
  const std::int64_t hidden = params.hidden;
  const double size = double(params.rows) * double(hidden);
  parallel_for(params.rows, threads_for(size, kGrain), [&](std::int64_t r, int) {
    Value* out = static_cast<Value*>(params.out) + r * hidden;
    const Value* residual = static_cast<const Value*>(params.residual);
    for (std::int64_t k = 0; k < hidden; k += kLanes) {
      store_first(out + k, load_first(sums + r * hidden + k, hidden - k), hidden - k);
      if (residual == nullptr) continue;
      const VF rounded = load_first(out + k, hidden - k);
      store_first(out + k, load_first(residual + r * hidden + k, hidden - k) + rounded, hidden - k);
    }
  });
}

}  // namespace

void moe_activate_kernel(const MoeParams& params, const void* in, std::int64_t rows, void* gated) {
  switch (params.dtype) {
    case DType::f32:
      return activate_rows(params, static_cast<const float*>(in), rows, static_cast<float*>(gated));
    case DType::bf16:
      return activate_rows(params, static_cast<const bf16*>(in), rows, static_cast<bf16*>(gated));
    case DType::f16:
      return activate_rows(params, static_cast<const f16*>(in), rows, static_cast<f16*>(gated));
  }
}

void moe_add_kernel(const MoeParams& params, const float* y, const std::int64_t* entries,
                    std::int64_t count, float* sums) {
  const std::int64_t hidden = params.hidden;
  const int threads = threads_for(double(count) * double(hidden), kGrain);
  parallel_for(count, threads, [&](std::int64_t i, int) {
    const float weight = params.weights[entries[i]];
    const float* from = y + i * hidden;
    float* to = sums + entries[i] / params.top_k * hidden;
    std::int64_t k = 0;
    for (; k + kLanes <= hidden; k += kLanes) store(to + k, load(to + k) + load(from + k) * weight);
    for (; k < hidden; ++k) to[k] += from[k] * weight;
  });
}

void moe_finish_kernel(const MoeParams& params, const float* sums) {
  switch (params.dtype) {
    case DType::f32: return finish_rows<float>(params, sums);
    case DType::bf16: return finish_rows<bf16>(params, sums);
    case DType::f16: return finish_rows<f16>(params, sums);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
