// The kernel for weights in codes by tiles of bytes: the bits of the one by vectors, which other
// tests compare with plain loops; where the processor has no AMX, on the emulator.
#include "amx_emulator.hpp"
#include "code_products.hpp"

namespace {

void check_case(const CodeCase& of) {
  CodeProduct product(of);
  const auto make_inputs = &trtspec::avx512::linear_code_inputs_kernel;
  const std::int64_t together = trtspec::code_rows(trtspec::Isa::avx512);
  // Tiles read rows one by one.
  check_same(product.run(make_inputs, together, &trtspec::avx512_bf16::linear_codes_dot),
             product.run(make_inputs, 1, &trtspec::amx::linear_codes_amx));
}

}  // namespace

int main() {
  if (!amx_emulator::can_run_kernels()) return 0;
  // A row, tiles that are full and that are not, two parts of rows; inputs that end within a tile,
  // and within a line; more groups than the inputs', and fewer.
  for (const std::int64_t rows : {1, 5, 16, 17, 33}) {
    check_case({rows, 300, 70, 4, 32, CodeCase::plain});
    check_case({rows, 33, 7, 4, 0, CodeCase::offsets});
    check_case({rows, 300, 40, 8, 0, CodeCase::zeros});
    check_case({rows, 530, 16, 8, 256, CodeCase::plain});
    check_case({rows, 77, 40, 4, 16, CodeCase::table});
    check_case({rows, 200, 16, 8, 64, CodeCase::offsets});
  }
  check_case({97, 256, 64, 4, 128, CodeCase::zeros});
  return check_result();
}
