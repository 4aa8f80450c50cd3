// Attention to latents with arithmetic in floats, of any dtype; see latent_attention_unit.hpp.
#include "latent_attention_kernel.hpp"

#include "latent_attention_unit.hpp"
#include "quantise_row.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void run(const LatentAttentionParams& params, const LatentUnit* units, std::int64_t num_units,
         const LatentScratch& layout, float* scratch, int threads) {
  const auto all = [&](auto cached) {
    using Cached = decltype(cached);
    run_latent_units<Value, Cached, LatentFloats<Value, Cached>>(params, units, num_units, layout,
                                                                 scratch, threads);
  };
  if (params.latent_scale != nullptr) return all(std::int8_t{});
  all(Value{});
}

}  // namespace

void latent_attention_kernel(const LatentAttentionParams& params, const LatentUnit* units,
                             std::int64_t num_units, const LatentScratch& layout, float* scratch,
                             int threads) {
  switch (params.dtype) {
    case DType::f32: return run<float>(params, units, num_units, layout, scratch, threads);
    case DType::bf16: return run<bf16>(params, units, num_units, layout, scratch, threads);
    case DType::f16: return run<f16>(params, units, num_units, layout, scratch, threads);
  }
}

void latent_write_kernel(const LatentAttentionParams& p) {
  const auto write = [&](auto value) {
    using Value = decltype(value);
    const auto row = [&](const void* rows, std::int64_t width, std::int64_t t, void* cache,
                         float* scales) {
      const std::int64_t slot = p.rows.slot_mapping[t];
      scales[slot] = quantise_row(static_cast<const Value*>(rows) + t * width, width,
                                  static_cast<std::int8_t*>(cache) + slot * width);
    };
    for (std::int64_t t = 0; t < p.rows.rows; ++t) {
      if (p.rows.slot_mapping[t] < 0) continue;
      row(p.latent, p.rank, t, p.latent_cache, p.latent_scale);
      row(p.key, p.rope_dim, t, p.key_cache, p.key_scale);
    }
  };
  switch (p.dtype) {
    case DType::f32: return write(float{});
    case DType::bf16: return write(bf16{});
    case DType::f16: return write(f16{});
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
