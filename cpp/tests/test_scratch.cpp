// Memory that calls give back for the next ones: nobody has the same at the same time.
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "scratch.hpp"

using trtspec::make_scratch;
using trtspec::Scratch;

int main() {
  // More at once than are kept, in two rounds: whole, aligned, and apart.
  for (int round = 0; round < 2; ++round) {
    std::vector<Scratch<std::uint8_t>> all;
    for (std::int64_t i = 0; i < 12; ++i) {
      all.push_back(make_scratch<std::uint8_t>(1000 * (12 - i)));
      CHECK(reinterpret_cast<std::uintptr_t>(all.back().get()) % 64 == 0);
      for (std::int64_t k = 0; k < 1000 * (12 - i); ++k)
        all.back()[std::size_t(k)] = std::uint8_t(i);
    }
    bool is_whole = true;
    for (std::int64_t i = 0; i < 12; ++i) {
      for (std::int64_t k = 0; k < 1000 * (12 - i); ++k) {
        is_whole = is_whole && all[std::size_t(i)][std::size_t(k)] == i;
      }
    }
    CHECK(is_whole);
  }
  // What was given back is the next one's; what is larger than any that was kept is new.
  const void* kept = make_scratch<float>(5000).get();
  CHECK(make_scratch<float>(4900).get() == kept);
  const Scratch<float> held = make_scratch<float>(5000);
  CHECK(held.get() == kept);
  CHECK(make_scratch<float>(5000).get() != kept);
  CHECK(make_scratch<float>(0) != nullptr);
  return check_result();
}
