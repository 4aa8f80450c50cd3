// A mixture of experts: each row through the few experts chosen for it, which alone are read.
#pragma once
#include <cstdint>
#include <trtspec/dtype.hpp>
#include <trtspec/linear.hpp>

namespace trtspec {

// What is made of gate g and up u, in float, rounded once.
enum class Activation { silu, quick_gelu, gelu_tanh, relu, relu2 };

// The same linear layer of every expert, their weights one behind the other.
struct ExpertLayers {
  enum class Kind { plain, codes };
  Kind kind;
  LinearQuantisedParams first;  // that of expert 0; without x, out and rows
  std::int64_t packed_bytes;    // from one expert's to the next
  std::int64_t scale_bytes;     // offsets lie as the scales
  std::int64_t zero_bytes;
  std::int64_t bias_bytes;
  std::int64_t table_bytes;
};

struct MoeParams {
  const void* x;  // [rows, hidden], of `dtype`
  const std::int64_t*
      chosen;            // [rows, top_k]: different experts in a row, each in [0, num_experts)
  const float* weights;  // [rows, top_k]
  const void* residual;  // [rows, hidden], of `dtype`, or null
  void* out;             // [rows, hidden], of `dtype`
  std::int64_t rows;
  std::int64_t hidden;
  std::int64_t inner;
  std::int64_t num_experts;
  std::int64_t top_k;
  DType dtype;
  ExpertLayers up;    // hidden -> 2 * inner: gates first
  ExpertLayers down;  // inner -> hidden
  Activation activation;
  float limit;   // g is cut to at most this, u to both sides; 0: neither
  float offset;  // added to u
};

// Sums of a row are taken in float in the order of its experts' numbers, rounded once; the residual
// is added to that and rounded again. Bits of a row depend on nothing of other rows.
void moe(const MoeParams& params);

// Bytes of experts' weights that the calls of this thread have read so far, each expert's once a
// call.
std::int64_t expert_bytes_read();

}  // namespace trtspec
