// Philox4x32-10, the counter-based generator behind every random choice of the runtime.
//
// A token's noise is a pure function of (seed, sample index, output index, token id): key = the
// seed's low and high word, counter = (token id >> 2, output index, sample index, 0), and the token
// takes word (token id & 3) of the result. Nothing about a batch, a tree or a thread enters it.
#pragma once

#include <cstdint>

namespace trtspec {

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

struct PhiloxKey {
  std::uint32_t word[2];
};

struct PhiloxBlock {
  std::uint32_t word[4];
};

// Always inlined: sources compiled for several instruction sets include this header, and a shared
// out-of-line copy could carry instructions that the running CPU lacks. Constexpr: CUDA kernels may
// call it too.
[[gnu::always_inline]] constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxMultiplier0} * counter.word[0];
    const std::uint64_t p1 = std::uint64_t{kPhiloxMultiplier1} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(p0)}};
    key.word[0] += kPhiloxWeyl0;
    key.word[1] += kPhiloxWeyl1;
  }
  return counter;
}

// Which noise a row draws: the seed of its request, the index among the request's n samples and the
// index of the output token. The two indices count modulo 2^32.
struct NoiseStream {
  PhiloxKey key;
  std::uint32_t output_index;
  std::uint32_t sample_index;
};

[[gnu::always_inline]] constexpr NoiseStream noise_stream(std::int64_t seed,
                                                          std::int64_t sample_index,
                                                          std::int64_t output_index) {
  const auto bits = static_cast<std::uint64_t>(seed);
  return {{{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)}},
          static_cast<std::uint32_t>(output_index),
          static_cast<std::uint32_t>(sample_index)};
}

// The raw 32 bits of one token.
[[gnu::always_inline]] constexpr std::uint32_t noise_word(const NoiseStream& stream,
                                                          std::int64_t token_id) {
  const auto id = static_cast<std::uint64_t>(token_id);
  const PhiloxBlock counter = {
      {static_cast<std::uint32_t>(id >> 2), stream.output_index, stream.sample_index, 0u}};
  return philox4x32_10(counter, stream.key).word[id & 3];
}

}  // namespace trtspec
