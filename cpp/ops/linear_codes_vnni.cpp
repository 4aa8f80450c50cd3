// The linear op with weights in codes and inputs of 8 or 16 bits, by the dot products of whole
// numbers of processors without AVX-512 (AVX-VNNI).
#include "linear_codes.hpp"

namespace trtspec::TRTSPEC_ISA_NS {

void linear_codes_vnni(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  run_whole_codes(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
