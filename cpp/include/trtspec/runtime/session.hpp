// Session: one compiled artifact, or a network made of several, run on flat tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trtspec {

class Session {
 public:
  virtual ~Session() = default;

  // Runs once; inputs are flat, in the order of trtspec/backends/inputs.py for a whole engine, and
  // in that of its file for a graph. Caches, the last inputs, are written in place; the outputs are
  // the others. Throws Error if it fails.
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;
};

}  // namespace trtspec
