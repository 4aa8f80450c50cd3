// Error: what a user gave does not work. Its message is one line that names the value, the limit
// and, where there is one, the remedy.
#pragma once

#include <stdexcept>

namespace trtspec {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace trtspec
