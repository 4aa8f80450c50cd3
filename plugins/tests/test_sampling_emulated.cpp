// sample and draft_candidates in the emulator against the CPU kernels: the same tokens.
#include <kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

std::mt19937 random_bits(5);

int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_bits); }

template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[below(static_cast<int>(values.size()))];
}

struct Call {
  std::int64_t rows, vocab;
  std::vector<float> logits, temperature, top_p, min_p;
  std::vector<std::int32_t> top_k;
  std::vector<std::int64_t> seed, sample_index, output_index;

  // Rows of every kind: spread, rounded (many equal logits), all equal, mostly -inf, huge, broken.
  Call(std::int64_t rows_, std::int64_t vocab_) : rows(rows_), vocab(vocab_) {
    const float inf = std::numeric_limits<float>::infinity();
    for (std::int64_t r = 0; r < rows; ++r) {
      const int kind = below(12);
      const float spread = one_of({0.5f, 3.0f, 10.0f});
      std::normal_distribution<float> normal(one_of({0.0f, -20.0f, 15.0f}), spread);
      const std::size_t begin = logits.size();
      for (std::int64_t v = 0; v < vocab; ++v) {
        float x = normal(random_bits);
        if (kind == 1) x = std::round(x);
        if (kind == 2) x = 0.25f;
        if (kind == 3 && below(50) != 0) x = -inf;
        if (kind == 4) x *= 1e30f;
        if (kind == 5 && below(4) == 0) x = below(2) == 0 ? 0.0f : -0.0f;
        logits.push_back(x);
      }
      float& some = logits[begin + std::size_t(below(int(vocab)))];
      if (kind == 6) some = one_of({inf, std::nanf("")});
      if (kind == 7 && below(3) == 0) {
        std::fill(logits.begin() + std::ptrdiff_t(begin), logits.end(), -inf);
      }
      if (kind == 3) some = 1.0f;
      temperature.push_back(one_of({0.0f, 1.0f, 1.0f, 0.7f, 0.05f, 5.0f, 1e-30f, 1e30f}));
      if (below(40) == 0) temperature.back() = one_of({-1.0f, inf, std::nanf("")});
      top_k.push_back(one_of({0, 0, 1, 5, 50, 3000, int(vocab), -1}));
      top_p.push_back(one_of({1.0f, 1.0f, 0.9f, 0.5f, 0.999f, 0.0f, -1.0f}));
      min_p.push_back(one_of({0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1.5f}));
      seed.push_back(std::int64_t((std::uint64_t(random_bits()) << 32) | random_bits()));
      sample_index.push_back(below(3));
      output_index.push_back(below(1000));
    }
  }

  trtspec::SamplingRows params() const {
    return {temperature.data(), top_k.data(),        top_p.data(),       min_p.data(),
            seed.data(),        sample_index.data(), output_index.data()};
  }
};

int tokens_found = 0;

void check_call(const Call& call, std::int64_t k, bool mapped) {
  const auto rows = std::size_t(call.rows);
  std::vector<std::int64_t> want(rows, -7), got(rows, -7);
  trtspec::sample(call.logits.data(), call.rows, call.vocab, call.params(), want.data());
  std::vector<double> memory(trtspec::cuda::sample_workspace(call.rows, call.vocab) / 8 + 1, NAN);
  CHECK_EQ(trtspec::cuda::sample(call.logits.data(), call.rows, call.vocab, call.params(),
                                 got.data(), memory.data(), nullptr),
           cudaSuccess);
  for (std::size_t r = 0; r < rows; ++r) {
    tokens_found += want[r] >= 0;
    if (got[r] == want[r]) continue;
    ++failed_checks();
    std::printf("sample of %d: %d, not %d: temperature %g, top_k %d, top_p %g, min_p %g\n",
                int(call.vocab), int(got[r]), int(want[r]), double(call.temperature[r]),
                int(call.top_k[r]), double(call.top_p[r]), double(call.min_p[r]));
  }

  std::vector<std::int64_t> map;
  for (std::int64_t v = 0; mapped && v < call.vocab; ++v) map.push_back(3 * v + 1);
  const std::int64_t* const token_map = mapped ? map.data() : nullptr;
  const std::size_t size = rows * std::size_t(k);
  std::vector<std::int64_t> want_ids(size, -7), got_ids(size, -7);
  std::vector<float> want_logprobs(size, NAN), got_logprobs(size, NAN);
  trtspec::draft_candidates(call.logits.data(), call.rows, call.vocab, call.params(), token_map, k,
                            want_ids.data(), want_logprobs.data());
  memory.assign(trtspec::cuda::draft_candidates_workspace(call.rows, call.vocab, k) / 8 + 1, NAN);
  CHECK_EQ(trtspec::cuda::draft_candidates(call.logits.data(), call.rows, call.vocab, call.params(),
                                           token_map, k, got_ids.data(), got_logprobs.data(),
                                           memory.data(), nullptr),
           cudaSuccess);
  for (std::size_t i = 0; i < size; ++i) {
    // A row's total is a sum of floats on CPUs.
    const float off = std::fabs(got_logprobs[i] - want_logprobs[i]);
    const bool same =
        got_logprobs[i] == want_logprobs[i] || off < 1e-6f + 1e-6f * std::fabs(want_logprobs[i]);
    if (got_ids[i] == want_ids[i] && same) continue;
    const std::size_t r = i / std::size_t(k);
    ++failed_checks();
    std::printf(
        "candidate %d of %d: %d (%g), not %d (%g): temperature %g, top_k %d, top_p %g, min_p %g\n",
        int(i % std::size_t(k)), int(call.vocab), int(got_ids[i]), double(got_logprobs[i]),
        int(want_ids[i]), double(want_logprobs[i]), double(call.temperature[r]), int(call.top_k[r]),
        double(call.top_p[r]), double(call.min_p[r]));
  }
}

}  // namespace

int main() {
  for_seeds([](unsigned seed) {
    tokens_found = 0;
    for (const std::int64_t vocab : {1, 3, 63, 1000, 2048, 5001, 9000}) {
      check_call(Call(10, vocab), one_of({1, 4, 10, 70}), (vocab + seed) % 2 == 1);
    }
    CHECK(tokens_found > 45);
  });
  std::int64_t id = 0;
  const float logit = 0.0f;
  CHECK_EQ(trtspec::cuda::sample(&logit, 1, std::int64_t{1} << 22, {}, &id, nullptr, nullptr),
           cudaErrorInvalidValue);
  return check_result();
}
