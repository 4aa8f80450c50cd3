// The schema of few_row_linear, whose kernels are for CUDA (plugins/torch); on CPUs Python has its
// reference.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "few_row_linear(Tensor x, Tensor weight, Tensor? bias, int out_features, int values, "
      "int group_size, ScalarType? out_dtype=None, *, Tensor? scales=None, Tensor? zeros=None, "
      "Tensor? offsets=None, bool swiglu=False, Tensor? residual=None) -> Tensor");
}
