// Attention to latents with arithmetic in floats, of any dtype; see latent_attention_unit.hpp.
#include "latent_attention_kernel.hpp"

#include "latent_attention_unit.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void run(const LatentAttentionParams& params, const LatentUnit* units, std::int64_t num_units,
         const LatentScratch& layout, float* scratch, int threads) {
  run_latent_units<Value, LatentFloats<Value>>(params, units, num_units, layout, scratch, threads);
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

}  // namespace trtspec::TRTSPEC_ISA_NS
