// Attention with arithmetic in floats, of any dtype; see attention_unit.hpp.
#include "attention_kernel.hpp"

#include "attention_unit.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

template <class Value>
void run(const AttentionParams& params, const AttentionRow* rows, const AttentionUnit* units,
         std::int64_t num_units, const AttentionScratch& layout, float* scratch, int threads) {
  run_units<Value, FloatKeys<Value>>(params, rows, units, num_units, layout, scratch, threads);
}

}  // namespace

void attention_kernel(const AttentionParams& params, const AttentionRow* rows,
                      const AttentionUnit* units, std::int64_t num_units,
                      const AttentionScratch& layout, float* scratch, int threads) {
  switch (params.dtype) {
    case DType::f32:
      return run<float>(params, rows, units, num_units, layout, scratch, threads);
    case DType::bf16:
      return run<bf16>(params, rows, units, num_units, layout, scratch, threads);
    case DType::f16:
      return run<f16>(params, rows, units, num_units, layout, scratch, threads);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
