#include "trtspec/acceptance.hpp"

#include <vector>

namespace trtspec {
namespace {

// Writes the path to the first row of depth `nodes`, or of the deepest there is; returns its rows.
std::int32_t forced_path(const std::int64_t* sampled, const std::int32_t* parents,
                         std::int64_t rows, std::int32_t nodes, std::int32_t* path) {
  std::vector<std::int32_t> depths(static_cast<std::size_t>(rows));
  std::int32_t last = 0;
  for (std::int32_t row = 1; row < rows; ++row) {
    depths[row] = depths[parents[row]] + 1;
    if (depths[row] <= nodes && depths[row] > depths[last]) last = row;
  }
  const std::int32_t length = depths[last] + 1;
  for (std::int32_t place = length - 1; place >= 0; --place) {
    path[place] = last;
    last = parents[last];
  }
  for (std::int32_t place = 0; place < length; ++place) {
    if (sampled[path[place]] < 0) return place + 1;
  }
  return length;
}

}  // namespace

std::int64_t accept(const std::int64_t* sampled, const std::int64_t* tokens,
                    const std::int32_t* parents, const std::int32_t* row_start,
                    std::int64_t requests, std::int64_t width, std::int32_t* accepted_rows,
                    std::int32_t* num_emitted, const std::int32_t* forced) {
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t first = row_start[b];
    const std::int64_t rows = row_start[b + 1] - first;
    if (rows < 0 || rows > width) return b;
    for (std::int64_t row = 1; row < rows; ++row) {
      if (parents[first + row] < 0 || parents[first + row] >= row) return b;
    }
    std::int32_t* path = accepted_rows + b * width;
    std::int32_t length = 0;
    if (rows > 0 && forced != nullptr && forced[b] >= 0) {
      length = forced_path(sampled + first, parents + first, rows, forced[b], path);
    } else if (rows > 0) {
      path[length++] = 0;
      // Children come after their parents, so the whole walk is one pass over the rows.
      std::int32_t current = 0;
      for (std::int32_t row = 1; row < rows; ++row) {
        if (parents[first + row] == current && tokens[first + row] == sampled[first + current]) {
          current = row;
          path[length++] = row;
        }
      }
    }
    num_emitted[b] = length;
    for (std::int64_t i = length; i < width; ++i) path[i] = -1;
  }
  return -1;
}

}  // namespace trtspec
