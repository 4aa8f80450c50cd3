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
  alignas(64) std::uint32_t words[kBlock];  // of the tokens
};

TRTSPEC_INLINE void noise_of_block(const NoiseStream& stream, std::int64_t block, NoiseBlock* out) {
  constexpr std::uint64_t kLow = 0xffffffffull;
  VQ lane{}, first{}, second{};  // and the places of neighbouring counters' pairs of words
  for (int i = 0; i < kWide; ++i) {
    lane[i] = static_cast<std::uint64_t>(i);
    first[i] = static_cast<std::uint64_t>(i / 2 + (i % 2) * kWide);
    second[i] = first[i] + kWide / 2;
  }
  std::uint32_t* words = out->words;
#pragma GCC unroll 2
  for (int c = 0; c < kCounters; c += kWide, words += 4 * kWide) {
    const Words w = philox(lane + static_cast<std::uint64_t>(block * kCounters + c), stream);
    const VQ front = (w.word[0] & kLow) | (w.word[1] << 32);
    const VQ back = (w.word[2] & kLow) | (w.word[3] << 32);
    const VQ low = __builtin_shuffle(front, back, first);
    const VQ high = __builtin_shuffle(front, back, second);
    __builtin_memcpy(words, &low, sizeof low);
    __builtin_memcpy(words + 2 * kWide, &high, sizeof high);
  }
}

// Whether any of the 64 words is at most `threshold`.
TRTSPEC_INLINE bool any_at_most(const NoiseBlock& noise, std::uint32_t threshold) {
  const auto* words = reinterpret_cast<const VUu*>(noise.words);
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

// The noise of a block, of the ids that its columns stand for.
TRTSPEC_INLINE void noise_of_columns(const SamplingRow& row, std::int64_t block, NoiseBlock* out) {
  if (row.token_map == nullptr) return noise_of_block(row.noise, block, out);
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
    const VQ word = (id & 2) != 0 ? high : low;
    for (int i = 0; i < kWide; ++i) out->words[t + i] = static_cast<std::uint32_t>(word[i]);
  }
}

TRTSPEC_INLINE float largest(VF values) {
  float lanes[kLanes];
  store(lanes, values);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
    }
  }
  return lanes[0];
}

// e^x for x <= 0; 0 below -86. The polynomials of this and the next are Cephes' (Moshier), without
// fused multiply-adds, so that every instruction set gives the same bits.
TRTSPEC_INLINE VF rough_exp(VF x) {
  const VF clamped = x < -86.0f ? VF{} - 86.0f : x;
  const VF shifted = clamped * 1.44269504f + 12582912.0f;  // its low bits are the exponent
  const VF k = shifted - 12582912.0f;
  const VF r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  VF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return x < -86.0f ? VF{} : (VF)((VI)p + ((VI)shifted << 23));
}

// math::exponential_of, of 32 random bits: from 1 - x, or from x itself where that is near 1, so
// the relative error is a float's everywhere.
TRTSPEC_INLINE VF rough_exponential(VU word) {
  constexpr std::int32_t kSqrtHalf = 0x3f3504f3;  // bits of sqrt(2)/2
  const VF x = (__builtin_convertvector(word, VF) + 0.5f) * 0x1p-32f;
  const VF complement = (__builtin_convertvector(~word, VF) + 0.5f) * 0x1p-32f;
  const VI bits = (VI)complement + (0x3f800000 - kSqrtHalf);
  const VI near_one = x < 0.25f;
  const VF f = near_one ? -x : (VF)((bits & 0x7fffff) + kSqrtHalf) - 1.0f;
  const VF k = near_one ? VF{} : __builtin_convertvector((bits >> 23) - 127, VF);
  const VF square = f * f;
  VF p = f * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const VF rest = (f * square * p - k * 2.12194440e-4f) - square * 0.5f;
  return -(k * 0.693359375f + (f + rest));
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
    maxima[b] = largest(best);
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
      const std::uint32_t word = noise.words[t];
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

void rough_weights(const SamplingRow& row, float highest, const float* maxima, bool greedy,
                   std::int64_t first, std::int64_t last, float* sums, float* peaks,
                   float* weights) {
  // Of logits so close that their scaled difference needs more, no float is left.
  const double inverse = 1.0 / row.temperature;
  const VF scale = splat(inverse < 3e38 ? float(inverse) : 3e38f);
  const VF most = splat(highest), least = splat(row.cut.logit);
  const VF min_p = splat(float(row.min_p));
  float scratch[kBlock];
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t begin = b * kBlock;
    float* const of_tokens = weights == nullptr ? nullptr : weights + (b - first) * kBlock;
    sums[b] = peaks[b] = 0.0f;
    if (maxima[b] < row.cut.logit) {
      if (of_tokens != nullptr) __builtin_memset(of_tokens, 0, kBlock * sizeof(float));
      continue;
    }
    const float* x = block_logits(row.logits, row.vocab, b, scratch);
    if (begin + kBlock > row.cut.column + 1) {  // of logits equal to the cut's, some are out
      for (std::int64_t t = 0; t < kBlock; ++t) {
        const bool is_out = x[t] == row.cut.logit && begin + t > row.cut.column;
        scratch[t] = is_out ? kNever : x[t];
      }
      x = scratch;
    }
    NoiseBlock noise;
    if (!greedy) noise_of_columns(row, b, &noise);
    VF sum[16 / kLanes] = {}, peak{};
#pragma GCC unroll 4
    for (int t = 0; t < kBlock; t += kLanes) {
      const VF logit = load(x + t);
      VF weight = rough_exp((logit - most) * scale);
      if (!greedy) {
        const VU words = *reinterpret_cast<const VUu*>(noise.words + t);
        const VF perturbed = weight / rough_exponential(words);
        weight = ((logit >= least) & (weight >= min_p)) ? perturbed : VF{};
        peak = max(weight, peak);
      }
      if (of_tokens != nullptr) store(of_tokens + t, weight);
      sum[t / kLanes % (16 / kLanes)] += weight;
    }
    float lanes[16];
    for (int i = 0; i < 16 / kLanes; ++i) store(lanes + i * kLanes, sum[i]);
    sums[b] = sum16(lanes);
    if (!greedy) peaks[b] = largest(peak);
  }
}

}  // namespace trtspec::TRTSPEC_ISA_NS
