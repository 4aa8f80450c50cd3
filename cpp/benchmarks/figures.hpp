// Figures: what a run came to, by name and unit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run.hpp"

namespace trtspec::bench {

struct Figure {
  std::string name;
  std::string unit;             // "" for a count or a ratio
  std::optional<double> value;  // nothing: the memory floor was not measured
  bool is_count = false;
};

// All figures in the order in which they are printed, from num_samples to the memory floor.
// read_bandwidth: bytes a second. Steps that were much faster than reading what they read tell that
// it is not the memory's speed, which another program was using: then there is no floor.
std::vector<Figure> make_figures(const RunResult& result, double read_bandwidth);

// "[BENCHMARK] name(unit) value" lines.
std::string benchmark_lines(const std::vector<Figure>& figures);
// A line of headers and a line of values.
std::string csv_text(const std::vector<Figure>& figures);

}  // namespace trtspec::bench
