// The linear op with weights in codes and inputs of 8 or 16 bits, by the processor's dot products of
// whole numbers (AVX512_VNNI), which every processor with that of bfloat16 has.
#include "linear_codes.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

void linear_codes_dot(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_whole_codes(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
