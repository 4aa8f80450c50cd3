// The kernel for weights in codes by the dot products of AVX-VNNI: the bits of the one without them;
// where the processor lacks them, on the emulator.
#include "avx_vnni_emulator.hpp"
#include "code_products.hpp"

namespace {

void check_case(const CodeCase& of) {
  const auto make_inputs = &trtspec::avx2::linear_code_inputs_kernel;
  const std::int64_t together = trtspec::code_rows(trtspec::Isa::avx_vnni);
  for (const std::int64_t input_bits : {8, 16}) {
    CodeProduct product(of, input_bits);
    check_same(product.run(make_inputs, together, &trtspec::avx2::linear_codes_kernel),
               product.run(make_inputs, together, &trtspec::avx_vnni::linear_codes_vnni));
  }
}

}  // namespace

int main() {
  if (!avx_vnni_emulator::can_run_kernels()) return 0;
  // A row, a block of rows and several; codes of all kinds, inputs that end within a group.
  for (const std::int64_t rows : {1, 5, 12}) {
    check_case({rows, 100, 40, 4, 32, CodeCase::plain});
    check_case({rows, 33, 7, 4, 0, CodeCase::offsets});
    check_case({rows, 150, 16, 8, 0, CodeCase::zeros});
    check_case({rows, 77, 24, 4, 16, CodeCase::table});
  }
  return check_result();
}
