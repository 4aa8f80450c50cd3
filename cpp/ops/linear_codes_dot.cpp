// The linear op with weights in codes and inputs of 8 bits, by the processor's dot product of bytes
// (AVX512_VNNI), which every processor with that of bfloat16 has.
#include "linear_codes.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

void linear_codes_dot(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_codes<ByteInputs>(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
