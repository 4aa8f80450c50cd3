// The linear op with weights in codes; and its inputs, rounded to 8 or 16 bits or as floats.
#include "linear_codes.hpp"

namespace trtspec::TRTSPEC_ISA_NS {
namespace {

constexpr double kInputGrain = 1 << 15;  // elements worth a thread: some microseconds
template <class Code>
constexpr float kLargest = sizeof(Code) == 1 ? 127 : 32767;
constexpr float kSmallest = 1e-30f;    // a group of inputs below is zero
constexpr float kWhole = 12582912.0f;  // added to a small float, leaves its nearest whole number
typedef std::int8_t VB __attribute__((vector_size(kLanes)));
typedef std::int8_t VBu __attribute__((vector_size(kLanes), aligned(1), may_alias));

#if defined(__AVX2__) && !defined(__AVX512F__)
// What two values at a time make of all lanes.
template <class Fold>
TRTSPEC_INLINE std::int32_t folded(VI values, const Fold& fold) {
  const __m256i all = (__m256i)values;
  __m128i rest = fold(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  rest = fold(rest, _mm_shuffle_epi32(rest, 0x4e));
  return _mm_cvtsi128_si32(fold(rest, _mm_shuffle_epi32(rest, 0xb1)));
}
#endif

// The largest of all, and their sum.
TRTSPEC_INLINE std::int32_t largest_of(VI values) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)values);
#elif defined(__AVX2__)
  return folded(values, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
#else
  std::int32_t largest = values[0];
  for (int i = 1; i < kLanes; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
#endif
}

TRTSPEC_INLINE std::int32_t sum_of(VI values) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)values);
#elif defined(__AVX2__)
  return folded(values, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
#else
  std::int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += values[i];
  return sum;
#endif
}

// The lowest byte of each.
TRTSPEC_INLINE VB low_bytes(VI values) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i places = _mm256_set1_epi64x(0x0c080400);
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)values, places);  // four of each half
  const __m256i halves = _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0);
  return (VB)_mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, halves))[0];
#else
  return __builtin_convertvector(values, VB);
#endif
}

// Where a row lies: in a block of `rows` rows, of which it is the `row`-th.
class RowPlace {
 public:
  RowPlace(const LinearQuantisedParams& params, const CodeInputs& inputs, std::int64_t row) {
    const std::int64_t block = ((row + 1) * inputs.blocks - 1) / params.linear.rows;
    first_ = inputs.first_row(params.linear.rows, block);
    rows_ = inputs.first_row(params.linear.rows, block + 1) - first_;
    row_ = row - first_;
    bytes_ = static_cast<char*>(inputs.x) + first_ * inputs.stride * input_bytes(params) + row_ * 4;
    of_groups_ = first_ * inputs.groups + row_;
  }

  // Puts bytes of the row from a multiple of four on to their places, in fours.
  TRTSPEC_INLINE void put(std::int64_t begin, std::int64_t count, const void* bytes) const {
    const char* from = static_cast<const char*>(bytes);
    char* to = bytes_ + begin * rows_;
    if (rows_ == 1 && count % 16 == 0) {
      for (std::int64_t k = 0; k < count; k += 16) std::memcpy(to + k, from + k, 16);
      return;
    }
    for (std::int64_t k = 0; k < count; k += 4, to += 4 * rows_) std::memcpy(to, from + k, 4);
  }

  void put_zeros(std::int64_t begin, std::int64_t end) const {
    const std::int32_t zero = 0;
    for (std::int64_t k = begin; k < end; k += 4) put(k, 4, &zero);
  }

  // The index of what belongs to a group.
  std::int64_t of_group(std::int64_t group) const { return of_groups_ + group * rows_; }

 private:
  std::int64_t first_, rows_, row_, of_groups_;
  char* bytes_;
};

TRTSPEC_INLINE void store_codes(std::int8_t* to, VI codes) {
  *reinterpret_cast<VBu*>(to) = low_bytes(codes);
}

TRTSPEC_INLINE void store_codes(std::int16_t* to, VI codes) {
  *reinterpret_cast<VHu*>(to) = narrow((VU)codes);
}

// What is kept of a group beside its codes.
TRTSPEC_INLINE void keep_group(const CodeInputs& inputs, std::int64_t index, std::int32_t centre,
                               float scale, std::int32_t total) {
  inputs.scales[index] = scale;
  inputs.sums[index] = scale * float(total);
  inputs.centres[index] = -centre * total;
}

// The codes of `count` inputs, with zeros behind them to the end of a vector. Size: so many inputs,
// whose values stay in registers; 0: any number up to 128.
template <int Size, class Value, class Code>
TRTSPEC_INLINE void round_group(const Value* x, std::int64_t count, std::int32_t centre,
                                const CodeInputs& inputs, std::int64_t index, Code* codes) {
  constexpr int kMost = (Size > 0 ? Size : 128) / kLanes;
  const int vectors = Size > 0 ? kMost : int((count + kLanes - 1) / kLanes);
  VF values[kMost];
  VI most{};  // magnitudes as whole numbers, so that a NaN is the largest
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    const std::int64_t left = count - i * kLanes;
    if (Size > 0 || left >= kLanes) {
      values[i] = load(x + i * kLanes);
    } else {
      alignas(64) float part[kLanes] = {};
      for (std::int64_t k = 0; k < left; ++k) part[k] = to_float(x[i * kLanes + k]);
      values[i] = load(part);
    }
    const VI bits = (VI)values[i] & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  const float magnitude = __builtin_bit_cast(float, largest_of(most));
  const float inverse = magnitude < kSmallest ? 0.0f : kLargest<Code> / magnitude;
  VI sum{};
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    const VI code = (VI)(values[i] * inverse + kWhole) - 0x4b400000;
    sum += code;
    store_codes(codes + i * kLanes, code);
  }
  const float scale = magnitude < kSmallest ? 0.0f : magnitude / kLargest<Code>;
  keep_group(inputs, index, centre, scale, sum_of(sum));
}

// As bytes of weights become 16 bits: the second of four inputs and the third change places.
TRTSPEC_INLINE void order_codes(std::int8_t*, std::int64_t) {}

TRTSPEC_INLINE void order_codes(std::int16_t* codes, std::int64_t count) {
  for (std::int64_t k = 0; k < count; k += 4) {
    const std::int16_t second = codes[k + 1];
    codes[k + 1] = codes[k + 2];
    codes[k + 2] = second;
  }
}

template <class Code, class Value>
void round_row(const LinearQuantisedParams& params, const CodeInputs& inputs, std::int64_t row) {
  const std::int64_t depth = params.linear.in_features;
  const Value* x = static_cast<const Value*>(params.linear.x) + row * depth;
  constexpr std::int64_t kSize = sizeof(Code);
  const RowPlace place(params, inputs, row);
  std::int32_t centre = 0;
  with_codes(params, [&](const auto& kind) { centre = kind.kCentre; });
  for (std::int64_t g = 0; g < inputs.groups; ++g) {
    const std::int64_t begin = g * inputs.size;
    const std::int64_t count = depth - begin < inputs.size ? depth - begin : inputs.size;
    const std::int64_t index = place.of_group(g);
    alignas(64) Code codes[128 + kLanes];
    if (count == 32) {
      round_group<32>(x + begin, count, centre, inputs, index, codes);
    } else if (count == 128) {
      round_group<128>(x + begin, count, centre, inputs, index, codes);
    } else {
      round_group<0>(x + begin, count, centre, inputs, index, codes);
    }
    const std::int64_t fours = (count + 3) / 4 * 4;
    order_codes(codes, fours);
    place.put(begin * kSize, fours * kSize, codes);
  }
  place.put_zeros((depth + 3) / 4 * 4 * kSize, inputs.stride * kSize);
}

template <class Value>
void widen_row(const LinearQuantisedParams& params, const CodeInputs& inputs, std::int64_t row) {
  const std::int64_t depth = params.linear.in_features;
  const Value* x = static_cast<const Value*>(params.linear.x) + row * depth;
  const RowPlace place(params, inputs, row);
  for (std::int64_t g = 0; g < inputs.groups; ++g) {
    const std::int64_t begin = g * inputs.size;
    const std::int64_t end = begin + inputs.size < depth ? begin + inputs.size : depth;
    float sum = 0;
    for (std::int64_t k = begin; k < end; ++k) {
      const float value = to_float(x[k]);
      sum += value;
      place.put(4 * k, 4, &value);
    }
    inputs.sums[place.of_group(g)] = sum;
  }
  place.put_zeros(4 * depth, 4 * inputs.stride);
}

template <class Value>
void make_inputs(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  const double size = double(params.linear.rows) * double(params.linear.in_features);
  parallel_for(params.linear.rows, threads_for(size, kInputGrain), [&](std::int64_t row, int) {
    if (params.input_bits == 8) return round_row<std::int8_t, Value>(params, inputs, row);
    if (params.input_bits == 16) return round_row<std::int16_t, Value>(params, inputs, row);
    widen_row<Value>(params, inputs, row);
  });
}

}  // namespace

void linear_code_inputs_kernel(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  switch (params.linear.dtype) {
    case DType::f32: return make_inputs<float>(params, inputs);
    case DType::bf16: return make_inputs<bf16>(params, inputs);
    case DType::f16: return make_inputs<f16>(params, inputs);
  }
}

void linear_codes_kernel(const LinearQuantisedParams& params, const CodeInputs& inputs) {
  if (params.input_bits > 0) return run_whole_codes(params, inputs);
  run_codes<FloatInputs>(params, inputs);
}

}  // namespace trtspec::TRTSPEC_ISA_NS
