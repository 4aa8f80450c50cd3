// mask_logits in the emulator against the CPU kernel: the same bits.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

std::mt19937 random_bits(11);

int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_bits); }

// Rows with broken logits among them, many biases of few tokens, words for more or fewer ids than
// there are.
void mask_logits_equals_cpu() {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int round = 0; round < 12; ++round) {
    const std::int64_t rows = 1 + below(5), vocab = 1 + below(700);
    std::vector<float> want(std::size_t(rows * vocab));
    for (float& x : want) x = std::normal_distribution<float>(0, 9)(random_bits);
    want[std::size_t(below(int(want.size())))] = std::nanf("");
    want[std::size_t(below(int(want.size())))] = -kNever;
    std::vector<std::tuple<std::int64_t, std::int64_t>> places(std::size_t(below(900)));
    for (auto& place : places) {
      place = {below(int(rows)), below(int(round % 2 == 0 ? 9 : vocab + 3))};
    }
    std::sort(places.begin(), places.end());
    std::vector<std::int64_t> bias_rows, bias_ids;
    std::vector<float> values;
    for (const auto& [row, id] : places) {
      bias_rows.push_back(row);
      bias_ids.push_back(id);
      values.push_back(below(4) == 0 ? kNever : 0.1f * float(below(99) - 50));
    }
    trtspec::LogitsMask mask;
    mask.words = (vocab + 31) / 32 + below(3) - 1;
    std::vector<std::int32_t> allowed(std::size_t(rows * mask.words));
    for (std::int32_t& word : allowed) word = below(3) == 0 ? -1 : std::int32_t(random_bits());
    if (round % 3 != 0) mask.allowed = allowed.data();
    mask.bias_rows = bias_rows.data();
    mask.bias_ids = bias_ids.data();
    mask.bias_values = values.data();
    mask.num_biases = std::int64_t(values.size());
    std::vector<float> got = want;
    trtspec::mask_logits(want.data(), rows, vocab, mask);
    CHECK_EQ(trtspec::cuda::mask_logits(got.data(), rows, vocab, mask, nullptr), cudaSuccess);
    CHECK_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  }
}

}  // namespace

int main() {
  for_seeds([](unsigned) { mask_logits_equals_cpu(); });
  return check_result();
}
