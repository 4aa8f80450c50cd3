// The version of the ops' schemas and meaning; compiled engines carry the one they call. The same as
// OPS_VERSION of trtspec/ops/__init__.py.
#pragma once

#include <cstdint>

namespace trtspec {

constexpr std::int64_t kOpsVersion = 11;

}  // namespace trtspec
