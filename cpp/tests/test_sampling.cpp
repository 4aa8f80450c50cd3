#include <trtspec/isa.hpp>
#include <trtspec/philox.hpp>
#include <trtspec/sampling.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "check.hpp"
#include "sampling_math.hpp"

namespace {

using namespace trtspec;

void philox_vectors() {
  const auto check = [](PhiloxBlock counter, PhiloxKey key, PhiloxBlock expected) {
    const PhiloxBlock got = philox4x32_10(counter, key);
    for (int i = 0; i < 4; ++i) CHECK_EQ(got.word[i], expected.word[i]);
  };
  constexpr std::uint32_t ones = 0xffffffffu;
  check({{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
  check({{ones, ones, ones, ones}}, {{ones, ones}},
        {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
  check({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {{0xa4093822u, 0x299f31d0u}},
        {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

void noise_is_accurate_in_both_tails() {
  for (const std::uint32_t word : {0u, 1u, 2u, 1000u, 0x7fffffffu, 0x80000000u, 0xc0000000u,
                                   0xfffffff0u, 0xfffffffeu, 0xffffffffu}) {
    const long double x = (static_cast<long double>(word) + 0.5L) / 4294967296.0L;
    const double expected = static_cast<double>(-logl(-log1pl(-x)));
    CHECK_NEAR(math::gumbel_of(word), expected, 1e-14);
  }
  CHECK_NEAR(math::gumbel_of(0), 22.8739, 1e-4);
  CHECK_NEAR(math::gumbel_of(0xffffffffu), -3.1301, 1e-3);
}

void exp_and_log_are_accurate() {
  for (double x = -690.0; x <= 690.0; x += 0.37) {
    CHECK_NEAR(math::exp_of(x) / std::exp(x), 1.0, 5e-16);
    CHECK_NEAR(math::log_of(std::exp(x)), std::log(std::exp(x)), 2e-16 * (1.0 + std::fabs(x)));
  }
  CHECK_EQ(math::exp_of(0.0), 1.0);
  CHECK_EQ(math::exp_of(-1000.0), 0.0);
  CHECK_EQ(math::exp_of(-std::numeric_limits<double>::infinity()), 0.0);
  CHECK_EQ(math::log_of(1.0), 0.0);
}

// Brute force over a row: the definition of the law without filters.
std::int64_t plain_argmax(const std::vector<float>& logits, float temperature, std::int64_t index) {
  const NoiseStream stream = noise_stream(42, 1, index);
  std::int64_t best = -1;
  double best_score = 0.0;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const double score = static_cast<double>(logits[v]) / static_cast<double>(temperature) +
                         math::gumbel_of(noise_word(stream, static_cast<std::int64_t>(v)));
    if (best < 0 || score > best_score) {
      best = static_cast<std::int64_t>(v);
      best_score = score;
    }
  }
  return best;
}

void sample_equals_brute_force() {
  std::vector<float> logits(1003);
  for (std::size_t v = 0; v < logits.size(); ++v) {
    logits[v] = 4.0f * std::sin(static_cast<float>(v * v));
  }
  const std::int32_t top_k = 0;
  const float top_p = 1.0f, min_p = 0.0f;
  const std::int64_t seed = 42, sample_index = 1;
  const Isa detected = detected_isa();
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    set_isa(isa);
    for (const float temperature : {0.1f, 1.0f, 100.0f}) {
      for (std::int64_t index = 0; index < 50; ++index) {
        const SamplingRows params{&temperature, &top_k,        &top_p, &min_p,
                                  &seed,        &sample_index, &index};
        std::int64_t id = -2, candidate = -2;
        float logprob = 1.0f;
        sample(logits.data(), 1, 1003, params, &id);
        CHECK_EQ(id, plain_argmax(logits, temperature, index));
        draft_candidates(logits.data(), 1, 1003, params, nullptr, 1, &candidate, &logprob);
        CHECK_EQ(candidate, id);
        CHECK(logprob <= 0.0f);
      }
    }
  }
  set_isa(detected);
}

}  // namespace

int main() {
  philox_vectors();
  noise_is_accurate_in_both_tails();
  exp_and_log_are_accurate();
  sample_equals_brute_force();
  return check_result();
}
