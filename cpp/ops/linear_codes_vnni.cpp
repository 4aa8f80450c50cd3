// The linear op with weights in codes and inputs of 8 bits, by the dot product of bytes of processors
// without AVX-512 (AVX-VNNI).
#include "linear_codes.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

void linear_codes_vnni(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_codes<ByteInputs>(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
