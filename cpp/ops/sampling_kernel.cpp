#include "sampling_kernel.hpp"

#include "simd.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr int kWide = kLanes / 2;  // lanes of 64 bits
constexpr int kCounters = kBlock / 4;

typedef double VD __attribute__((vector_size(kWide * 8)));
typedef std::uint64_t VQ __attribute__((vector_size(kWide * 8)));
typedef float VFHalf __attribute__((vector_size(kWide * 4)));
typedef double VDu __attribute__((vector_size(kWide * 8), aligned(8), may_alias));
typedef std::uint64_t VQu __attribute__((vector_size(kWide * 8), aligned(8), may_alias));
typedef float VFHalfu __attribute__((vector_size(kWide * 4), aligned(4), may_alias));

TRTSPEC_INLINE VQ broadcast(std::uint64_t x) { return x - VQ{}; }
TRTSPEC_INLINE VD broadcast(double x) { return x - VD{}; }
TRTSPEC_INLINE VD load_wide(const float* p) {
  return __builtin_convertvector(*reinterpret_cast<const VFHalfu*>(p), VD);
}
TRTSPEC_INLINE VD load_wide(const double* p) { return *reinterpret_cast<const VDu*>(p); }
TRTSPEC_INLINE void store_wide(double* p, VD v) { *reinterpret_cast<VDu*>(p) = v; }
TRTSPEC_INLINE void store_wide(std::uint64_t* p, VQ v) { *reinterpret_cast<VQu*>(p) = v; }

// The product of the low halves of each lane.
TRTSPEC_INLINE VQ multiply_low(VQ a, VQ b) {
#if defined(__AVX512F__)
  return (VQ)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (VQ)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (VQ)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffull) * (b & 0xffffffffull);
#endif
}

// A Philox block for the counter (low half of `counter`) of each lane. The upper halves of the
// words carry garbage throughout: a product reads only the lower ones.
struct Words {
  VQ word[4];
};

TRTSPEC_INLINE Words philox(VQ counter, const NoiseStream& noise) {
  VQ c0 = counter, c1 = broadcast(std::uint64_t{noise.output_index});
  VQ c2 = broadcast(std::uint64_t{noise.sample_index}), c3{};
  const VQ m0 = broadcast(std::uint64_t{kPhiloxMultiplier0});
  const VQ m1 = broadcast(std::uint64_t{kPhiloxMultiplier1});
  std::uint32_t k0 = noise.key.word[0], k1 = noise.key.word[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const VQ p0 = multiply_low(c0, m0), p1 = multiply_low(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ std::uint64_t{k0};
    c2 = (p0 >> 32) ^ c3 ^ std::uint64_t{k1};
    c1 = p1;
    c3 = p0;
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

struct NoiseBlock {
  alignas(64) std::uint64_t pair[2][kCounters];  // words 0 | 1 << 32 and 2 | 3 << 32 of a counter
};

TRTSPEC_INLINE std::uint32_t word_of(const NoiseBlock& noise, int token) {
  return static_cast<std::uint32_t>(noise.pair[(token >> 1) & 1][token >> 2] >> (32 * (token & 1)));
}

TRTSPEC_INLINE void noise_of_block(const NoiseStream& stream, std::int64_t block, NoiseBlock* out) {
  VQ lane{};
  for (int i = 0; i < kWide; ++i) lane[i] = static_cast<std::uint64_t>(i);
  constexpr std::uint64_t kLow = 0xffffffffull;
#pragma GCC unroll 2
  for (int c = 0; c < kCounters; c += kWide) {
    const Words w = philox(lane + static_cast<std::uint64_t>(block * kCounters + c), stream);
    store_wide(out->pair[0] + c, (w.word[0] & kLow) | (w.word[1] << 32));
    store_wide(out->pair[1] + c, (w.word[2] & kLow) | (w.word[3] << 32));
  }
}

// Whether any of the 64 words is at most `threshold`.
TRTSPEC_INLINE bool any_at_most(const NoiseBlock& noise, std::uint32_t threshold) {
  const auto* words = reinterpret_cast<const VUu*>(noise.pair);
  const VU limit = threshold - VU{};
  VI found{};
  for (int i = 0; i < kBlock / kLanes; ++i) found |= (VI)(words[i] <= limit);
  std::int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= found[i];
  return any != 0;
}

constexpr float kNever = -__builtin_inff();

// The 64 logits of a block; the missing ones of the last block read as -inf.
TRTSPEC_INLINE const float* block_logits(const float* logits, std::int64_t vocab,
                                         std::int64_t block, float* scratch) {
  const std::int64_t begin = block * kBlock;
  if (begin + kBlock <= vocab) return logits + begin;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    scratch[i] = begin + i < vocab ? logits[begin + i] : kNever;
  }
  return scratch;
}

TRTSPEC_INLINE VD weights_at(const SamplingRow& row, const float* logits) {
  return math::exp_of<VD, VQ>(load_wide(logits) / row.temperature - row.max_scaled);
}

// 1 / E = exp(noise) of the 64 tokens of a block, as a divisor: E.
TRTSPEC_INLINE void exponential_block(const SamplingRow& row, std::int64_t block, double* out) {
  constexpr std::uint64_t kExponent52 = 0x4330000000000000ull;
  alignas(64) std::uint64_t words[kBlock];
  if (row.token_map == nullptr) {
    NoiseBlock noise;
    noise_of_block(row.noise, block, &noise);
    for (int t = 0; t < kBlock; ++t) words[t] = word_of(noise, t);
  } else {
    const std::int64_t begin = block * kBlock;
    for (int t = 0; t < kBlock; t += kWide) {
      VQ id{};
      for (int i = 0; i < kWide; ++i) {
        const std::int64_t column = begin + t + i;
        id[i] = static_cast<std::uint64_t>(column < row.vocab ? row.token_map[column] : 0);
      }
      const Words w = philox((id >> 2) & 0xffffffffull, row.noise);
      const VQ low = (id & 1) != 0 ? w.word[1] : w.word[0];
      const VQ high = (id & 1) != 0 ? w.word[3] : w.word[2];
      store_wide(words + t, ((id & 2) != 0 ? high : low) & 0xffffffffull);
    }
  }
  for (int t = 0; t < kBlock; t += kWide) {
    const VQ bits = *reinterpret_cast<const VQu*>(words + t) | kExponent52;
    store_wide(out + t, math::exponential_of<VD, VQ>((VD)bits - math::kTwo52));
  }
}

}  // namespace

bool block_maxima(const float* logits, std::int64_t vocab, std::int64_t first, std::int64_t last,
                  float* maxima) {
  VI nan{};
  float scratch[kBlock];
  for (std::int64_t b = first; b < last; ++b) {
    const float* x = block_logits(logits, vocab, b, scratch);
    VF best = load(x);
    nan |= (VI)(best != best);
    for (int i = kLanes; i < kBlock; i += kLanes) {
      const VF next = load(x + i);
      nan |= (VI)(next != next);
      best = next > best ? next : best;
    }
    float lanes[kLanes];
    store(lanes, best);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
      }
    }
    maxima[b] = lanes[0];
  }
  std::int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= nan[i];
  return any == 0;
}

void block_weights(const SamplingRow& row, const float* maxima, std::int64_t count,
                   double* weights) {
  std::int64_t b = 0;
  for (; b + kWide <= count; b += kWide) store_wide(weights + b, weights_at(row, maxima + b));
  for (; b < count; ++b) weights[b] = token_weight(row, maxima[b]);
}

TokenScore noise_argmax(const SamplingRow& row, const float* maxima, const double* weights,
                        std::int64_t first, std::int64_t last) {
  // A token beats `best` only if exp(-noise) = E is at most exp(scaled logit - best); and x < E,
  // so its 32 bits are below 2^32 exp(scaled logit - best). A block's maximum bounds its tokens.
  // The slack covers the rounding of exp and, for huge scaled logits, of the scores themselves.
  const double size = row.max_scaled < 0.0 ? -row.max_scaled : row.max_scaled;
  const double slack = 1e-9 + 1e-15 * size;
  const auto limit_for = [&](double best) {
    const double exponent = row.max_scaled - best + slack;
    return 0x1p32 * math::exp_of(exponent < 650.0 ? exponent : 650.0);
  };
  TokenScore best{-__builtin_inf(), -1};
  double limit = limit_for(row.max_scaled - 3.2);  // the smallest noise is -3.14
  NoiseBlock noise;
  for (std::int64_t b = first; b < last; ++b) {
    const double bound = weights[b] * limit;
    if (!(bound >= 0.5) || maxima[b] < row.cut.logit) continue;
    const std::uint32_t threshold =
        bound < 4294967295.0 ? static_cast<std::uint32_t>(bound) : 0xffffffffu;
    noise_of_block(row.noise, b, &noise);
    if (!any_at_most(noise, threshold)) continue;
    const std::int64_t begin = b * kBlock;
    const std::int64_t tokens = row.vocab - begin < kBlock ? row.vocab - begin : kBlock;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::uint32_t word = word_of(noise, static_cast<int>(t));
      if (word > threshold || !survives(row, begin + t)) continue;
      const double score = scaled_logit(row, row.logits[begin + t]) + math::gumbel_of(word);
      if (score > best.score) {
        best = {score, begin + t};
        if (score > row.max_scaled - 3.2) limit = limit_for(score);
      }
    }
  }
  return best;
}

void mass_histogram(const SamplingRow& row, const double* weights, std::int64_t first,
                    std::int64_t last, std::int64_t* histogram) {
  float scratch[kBlock];
  alignas(64) std::uint64_t masses[kBlock], buckets[kBlock];
  for (std::int64_t b = first; b < last; ++b) {
    if (weights[b] < kSmallest) continue;
    const float* x = block_logits(row.logits, row.vocab, b, scratch);
    for (int t = 0; t < kBlock; t += kWide) {
      const VD weight = weights_at(row, x + t);
      const VD counted = weight < kSmallest ? broadcast(kSmallest) : weight;
      store_wide(masses + t, mass_of<VD, VQ>(counted));
      store_wide(buckets + t, bucket_of<VD, VQ>(counted));
    }
    for (int t = 0; t < kBlock; ++t) {
      histogram[buckets[t]] += static_cast<std::int64_t>(masses[t]);
    }
  }
}

void perturbed_weights(const SamplingRow& row, const float* maxima, bool greedy, std::int64_t first,
                       std::int64_t last, double* out, double* sums, double* peaks) {
  float scratch[kBlock];
  alignas(64) double divisor[kBlock];
  const VD min_p = broadcast(row.min_p);
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t begin = b * kBlock;
    double* block = out + begin;
    sums[b] = peaks[b] = 0.0;
    if (maxima[b] < row.cut.logit) {
      for (int t = 0; t < kBlock; ++t) block[t] = 0.0;
      continue;
    }
    const float* x = block_logits(row.logits, row.vocab, b, scratch);
    if (greedy) {
      for (int t = 0; t < kBlock; t += kWide) store_wide(block + t, weights_at(row, x + t));
    } else {
      exponential_block(row, b, divisor);
      for (int t = 0; t < kBlock; t += kWide) {
        const VD logit = load_wide(x + t);
        const VD weight = math::exp_of<VD, VQ>(logit / row.temperature - row.max_scaled);
        const VD perturbed = weight / load_wide(divisor + t);
        const VD above = logit >= static_cast<double>(row.cut.logit) ? perturbed : VD{};
        store_wide(block + t, weight >= min_p ? above : VD{});
      }
      // Of the logits equal to the cut's, only those up to its column survive.
      if (begin + kBlock > row.cut.column + 1) {
        for (int t = 0; t < kBlock; ++t) {
          if (x[t] == row.cut.logit && begin + t > row.cut.column) block[t] = 0.0;
        }
      }
    }
    double sum[8] = {}, peak[8] = {};
    for (int t = 0; t < kBlock; t += 8) {
      for (int i = 0; i < 8; ++i) {
        sum[i] += block[t + i];
        peak[i] = block[t + i] > peak[i] ? block[t + i] : peak[i];
      }
    }
    for (int i = 0; i < 8; ++i) {
      sums[b] += sum[i];
      peaks[b] = peak[i] > peaks[b] ? peak[i] : peaks[b];
    }
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
