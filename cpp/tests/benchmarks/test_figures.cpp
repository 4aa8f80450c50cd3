// The memory floor of a run: by the best of several samples, and none where that was not measured.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "check.hpp"
#include "figures.hpp"
#include "memory_speed.hpp"

namespace {

using namespace trtspec::bench;

const Figure& find(const std::vector<Figure>& figures, const std::string& name) {
  for (const Figure& figure : figures) {
    if (figure.name == name) return figure;
  }
  CHECK(false);
  return figures.front();
}

// Ten steps of 2 ms that read 100 MB each.
RunResult run() {
  RunResult result;
  result.verify.count = 10;
  result.verify.seconds = 0.02;
  result.verify.traffic.weight_bytes = 900'000'000;
  result.verify.traffic.kv_bytes = 100'000'000;
  return result;
}

void test_best_sample() {
  const std::vector<double> speeds = {8.4e9, 76e9, 20e9};
  std::size_t next = 0;
  MemorySpeed speed([&] { return speeds[next++]; });
  CHECK_EQ(speed.best(), 0.0);
  speed.sample();
  CHECK_EQ(speed.best(), 8.4e9);
  speed.sample();
  speed.sample();
  CHECK_EQ(speed.best(), 76e9);
}

void test_floor() {
  const std::vector<Figure> figures = make_figures(run(), 100e9);  // 10 ms for all
  CHECK(std::abs(*find(figures, "memory_floor_share").value - 0.5) < 1e-9);
  CHECK(std::abs(*find(figures, "memory_floor").value - 1.0) < 1e-9);
  CHECK(std::abs(*find(figures, "read_bandwidth").value - 100.0) < 1e-9);
  // What timing alone may exceed is a figure still.
  CHECK(find(make_figures(run(), 48e9), "memory_floor_share").value.has_value());
}

void test_a_floor_that_was_not_measured() {
  for (const double speed : {8.4e9, 47e9, 0.0}) {
    const std::vector<Figure> figures = make_figures(run(), speed);
    for (const char* name : {"memory_floor", "memory_floor_share"}) {
      CHECK(!find(figures, name).value.has_value());
    }
    CHECK(find(figures, "verify_step_time").value.has_value());
    const std::string lines = benchmark_lines(figures);
    CHECK(lines.find("memory_floor_share(floor/step) floor not measured\n") != std::string::npos);
    CHECK(csv_text(figures).find(",floor not measured") != std::string::npos);
  }
}

}  // namespace

int main() {
  test_best_sample();
  test_floor();
  test_a_floor_that_was_not_measured();
}
