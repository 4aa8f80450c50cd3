#include "trtspec/acceptance.hpp"

namespace trtspec {

std::int64_t accept(const std::int64_t* sampled, const std::int64_t* tokens,
                    const std::int32_t* parents, const std::int32_t* row_start,
                    std::int64_t requests, std::int64_t width, std::int32_t* accepted_rows,
                    std::int32_t* num_emitted) {
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t first = row_start[b];
    const std::int64_t rows = row_start[b + 1] - first;
    if (rows < 1 || rows > width) return b;
    for (std::int64_t row = 1; row < rows; ++row) {
      if (parents[first + row] < 0 || parents[first + row] >= row) return b;
    }
    std::int32_t* path = accepted_rows + b * width;
    std::int32_t length = 0;
    path[length++] = 0;
    // Children come after their parents, so the whole walk is one pass over the rows.
    std::int32_t current = 0;
    for (std::int32_t row = 1; row < rows; ++row) {
      if (parents[first + row] == current && tokens[first + row] == sampled[first + current]) {
        current = row;
        path[length++] = row;
      }
    }
    num_emitted[b] = length;
    for (std::int64_t i = length; i < width; ++i) path[i] = -1;
  }
  return -1;
}

}  // namespace trtspec
