// Why a text ends.
#pragma once

namespace trtspec {

enum class FinishReason { none, stop, length, error, abort };

}  // namespace trtspec
