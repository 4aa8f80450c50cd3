// TreeAccept: the walk through verified trees.
#pragma once
#include "plugin.hpp"

namespace trtspec::tensorrt {

// The contract of trtspec::accept (trtspec/ops/acceptance.py).
// Inputs: sampled, tokens [R] int64; parents [R] int32; row_start [B + 1] int32. Rows behind
// row_start[B] are not read.
// Outputs: accepted_rows [B, width] int32, padded with -1; num_emitted [B] int32, 0 for a request
// that is malformed, or has no row or more than `width`.
// Field: width, the most rows that a request may have.
class TreeAccept final : public Plugin {
 public:
  static constexpr const char* kName = "TreeAccept";
  static std::vector<FieldSpec> field_specs();

  explicit TreeAccept(Fields fields);

 private:
  std::unique_ptr<Plugin> copy() const override { return std::make_unique<TreeAccept>(*this); }
  cudaError_t launch(const Call& call) const override;
};

}  // namespace trtspec::tensorrt
